"""The OpenAI-compatible HTTP front end. Imports neither torch nor transformers."""
