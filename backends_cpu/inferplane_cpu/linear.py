"""Products with dense weights on the host; knows torch's matrix product and no quantization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from inferplane_api.quant import Weight


class CPULinear:
    """Implements `inferplane_api.quant.LinearKernel` for dense weights: float32 through the host's BLAS, 16 bit through
    oneDNN, which picks AMX, AVX512-BF16 or ARM BF16 at run time."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        """[sum of out_features, in_features]. A single weight of the right type is shared, not copied."""
        parts = [weight.data.to(device=self._device, dtype=self._dtype) for weight in weights]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def apply(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in_features] gives [..., sum of out_features], in x's dtype."""
        return torch.nn.functional.linear(x, packed, bias)
