"""Values of a descriptor that no rule of selection could work with. The conformance kit asks the same."""

from inferplane_api.internal.soundness import unsound

__all__ = ["unsound"]
