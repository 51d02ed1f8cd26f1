"""Checkpoint formats beyond plain safetensors; knows no device."""
