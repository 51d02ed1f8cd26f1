"""An example overlay: attention for somebody else's platform."""
