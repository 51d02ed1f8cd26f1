"""Where models come from: local paths, packages, the Hugging Face Hub, ModelScope."""
