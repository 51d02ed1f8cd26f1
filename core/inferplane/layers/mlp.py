"""The gated feed-forward block that most decoders share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.layers.layer import Layer
from inferplane.layers.linear import Linear
from inferplane_api.errors import InvalidValue

if TYPE_CHECKING:
    import torch

    from inferplane.layers.context import ModelContext

_ACTIVATIONS = {
    "silu": "silu_mul",
    "swish": "silu_mul",
    "gelu": "gelu_mul",
    "gelu_pytorch_tanh": "gelu_tanh_mul",
    "gelu_new": "gelu_tanh_mul",
}


class GatedMLP(Layer):
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020)."""

    def __init__(self, context: ModelContext, name: str, activation: str, *, bias: bool = False) -> None:
        hidden, inner = context.spec.hidden_size, context.spec.intermediate_size
        if activation not in _ACTIVATIONS:
            raise InvalidValue(
                "hidden_act", activation, f"is not one of the supported activations: {', '.join(_ACTIVATIONS)}"
            )
        self.gate_up_proj = Linear(context, (f"{name}.gate_proj", f"{name}.up_proj"), hidden, (inner, inner), bias=bias)
        self.down_proj = Linear(context, (f"{name}.down_proj",), inner, (hidden,), bias=bias)
        self._activate = getattr(context.ops, _ACTIVATIONS[activation])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] gives [T, hidden]."""
        return self.down_proj(self._activate(self.gate_up_proj(x)))
