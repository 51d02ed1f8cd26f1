"""Measuring: an HTTP load driver for any OpenAI-compatible server, and offline measurements of this engine."""
