"""The linear kernel that always works: any scheme, dequantized at load, multiplied by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_api.quant import DENSE

if TYPE_CHECKING:
    from inferplane_api.quant import Weight


class ReferenceLinear:
    """Implements `inferplane_api.quant.LinearKernel` for every scheme."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        """[sum of out_features, in_features] on the device. A single dense weight that is there already is shared."""
        parts = [self._plain(weight) for weight in weights]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _plain(self, weight: Weight) -> torch.Tensor:
        plain = weight.data if weight.scheme.name == DENSE.name else weight.dequantize(self._dtype)
        return plain.to(device=self._device, dtype=self._dtype).contiguous()

    def apply(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in_features] gives [..., sum of out_features], in x's dtype."""
        return torch.nn.functional.linear(x, packed, bias)
