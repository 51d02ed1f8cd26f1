"""Values of a descriptor that no rule of selection could work with. The conformance kit asks the same."""

from inferplane_api.internal.soundness import torch_mismatch, unsound

__all__ = ["torch_mismatch", "unsound"]
