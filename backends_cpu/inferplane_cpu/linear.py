"""Products with dense weights on the host; knows torch's matrix product and no quantization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_cpu.instructions import multiplies_natively, processor_flags

if TYPE_CHECKING:
    from inferplane_api.quant import Weight

TALL = 8192
"""Output features from which a few rows are multiplied as W xᵀ: BLAS reads a tall weight once that way, and several
times as x Wᵀ. Measured on a vocabulary of 49,152 with 2 to 64 rows: 1.5 to 1.8 times faster."""

FEW_ROWS = 64


class CPULinear:
    """Implements `inferplane_api.quant.LinearKernel` for dense weights: float32 through the host's BLAS, 16 bit through
    oneDNN, which picks AMX, AVX512-BF16 or ARM BF16 at run time.

    Without instructions for a 16-bit type its product is emulated, several times slower than float32's. There the
    weights, rounded to the type, are kept in float32 and multiplied in it: the operands are the same and the sum is in
    float32 as it is with the instructions, at twice the memory.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        native = multiplies_natively(str(dtype).removeprefix("torch."), processor_flags())
        self._product_dtype = dtype if native else torch.float32

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        """[sum of out_features, in_features]. A single weight of the right type is shared, not copied."""
        parts = [weight.data.to(device=self._device, dtype=self._dtype).to(self._product_dtype) for weight in weights]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def apply(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in_features] gives [..., sum of out_features], in x's dtype."""
        if x.dtype != packed.dtype:
            wide_bias = None if bias is None else bias.to(packed.dtype)
            return self._product(x.to(packed.dtype), packed, wide_bias).to(x.dtype)
        return self._product(x, packed, bias)

    def _product(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if packed.dtype == torch.float32 and packed.shape[0] >= TALL and x.dim() == 2 and 1 < x.shape[0] <= FEW_ROWS:
            product = torch.mm(packed, x.t()).t().contiguous()
            return product if bias is None else product + bias
        return torch.nn.functional.linear(x, packed, bias)
