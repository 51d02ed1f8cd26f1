"""Reading checkpoints: which format reads one, its card, and the safetensors format of core."""
