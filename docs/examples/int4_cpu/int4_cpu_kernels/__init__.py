"""An example overlay: a linear kernel for somebody else's platform and nobody's checkpoint format in particular."""
