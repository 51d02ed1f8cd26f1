"""The gated feed-forward block that most decoders share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.layers.activations import gated_op
from inferplane.layers.layer import Layer
from inferplane.layers.linear import Linear

if TYPE_CHECKING:
    import torch

    from inferplane.layers.context import ModelContext


class GatedMLP(Layer):
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020)."""

    def __init__(self, context: ModelContext, name: str, activation: str, *, bias: bool = False) -> None:
        hidden, inner = context.spec.hidden_size, context.spec.intermediate_size
        self.gate_up_proj = Linear(context, (f"{name}.gate_proj", f"{name}.up_proj"), hidden, (inner, inner), bias=bias)
        self.down_proj = Linear(context, (f"{name}.down_proj",), inner, (hidden,), bias=bias)
        self._activate = getattr(context.ops, gated_op("hidden_act", activation))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] gives [T, hidden]."""
        return self.down_proj(self._activate(self.gate_up_proj(x)))
