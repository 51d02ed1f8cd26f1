"""Normalisation layers over the platform's ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane.layers.layer import Layer, read_tensor

if TYPE_CHECKING:
    from inferplane.layers.context import ModelContext
    from inferplane_api.checkpoint import Checkpoint


class RMSNorm(Layer):
    """Root mean square normalisation of the last dimension.

    offset: added to the weight (Gemma stores weight - 1). The reference of op rms_norm says where it rounds.
    """

    def __init__(self, context: ModelContext, name: str, size: int, eps: float, *, offset: float = 0.0) -> None:
        self._context = context
        self._name = f"{name}.weight"
        self._size = size
        self._eps = eps
        self._offset = offset
        self._weight = torch.empty(0)
        self._rms_norm = context.ops.rms_norm
        self._add_rms_norm = context.ops.add_rms_norm

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weight."""
        return {self._name: (self._size,)}

    def read(self, checkpoint: Checkpoint) -> None:
        """Take the weight."""
        context = self._context
        self._weight = read_tensor(checkpoint, self._name, (self._size,), context.dtype, context.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size], normalised."""
        return self._rms_norm(x, self._weight, self._eps, self._offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalised x + residual, x + residual); without a residual, (normalised x, x)."""
        if residual is None:
            return self(x), x
        return self._add_rms_norm(x, residual, self._weight, self._eps, self._offset)


class LayerNorm(Layer):
    """Normalisation to mean 0 and variance 1 over the last dimension, then a weight and a bias (Ba et al., 2016)."""

    def __init__(self, context: ModelContext, name: str, size: int, eps: float) -> None:
        self._context = context
        self._names = (f"{name}.weight", f"{name}.bias")
        self._size = size
        self._eps = eps
        self._weight = self._bias = torch.empty(0)
        self._layer_norm = context.ops.layer_norm

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Weight and bias."""
        return dict.fromkeys(self._names, (self._size,))

    def read(self, checkpoint: Checkpoint) -> None:
        """Take both."""
        context = self._context
        self._weight, self._bias = (
            read_tensor(checkpoint, name, (self._size,), context.dtype, context.device) for name in self._names
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size], normalised."""
        return self._layer_norm(x, self._weight, self._bias, self._eps)
