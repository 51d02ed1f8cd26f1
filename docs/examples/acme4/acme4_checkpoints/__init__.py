"""An example checkpoint format: folders whose config.json names the quantization acme4."""
