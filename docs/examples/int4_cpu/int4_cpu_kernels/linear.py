"""y = x Wᵀ + b with W kept in four bits: unpacked block by block, so that no whole matrix is ever there in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from inferplane_api.quant import Weight

BLOCK = 256
"""Outputs that are unpacked at a time."""


class Packed(NamedTuple):
    """Stacked weights of the scheme int4.g32.sym."""

    data: torch.Tensor
    """[out, in / 2] uint8: two weights a byte, the even one in the low half, each plus 8."""
    scales: torch.Tensor
    """[out, in / 32], in the compute type."""


class Int4Linear:
    """Implements `inferplane_api.quant.LinearKernel`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def pack(self, weights: list[Weight]) -> Packed:
        """Stack along the output. A real kernel would lay the bytes out for its device here, once."""
        data = torch.cat([weight.data for weight in weights])
        scales = torch.cat([weight.extras["scales"] for weight in weights if weight.extras is not None])
        return Packed(data.to(self._device), scales.to(self._device, self._dtype))

    def apply(self, x: torch.Tensor, packed: Packed, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in] gives [..., out]."""
        blocks = [slice(start, start + BLOCK) for start in range(0, len(packed.data), BLOCK)]
        weights = (self._unpack(packed.data[block], packed.scales[block]) for block in blocks)
        y = torch.cat([x @ weight.t() for weight in weights], dim=-1)
        return y if bias is None else y + bias

    def _unpack(self, data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((data & 15, data >> 4), dim=-1).flatten(1).to(self._dtype) - 8
        return (codes.view(len(codes), -1, 32) * scales[:, :, None]).flatten(1)
