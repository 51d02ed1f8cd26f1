"""Makes random weights of quantization schemes, packed as their format packs them, with the truth beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_api.quant import DENSE, QuantScheme, Weight
from inferplane_api.testing import weights_ggml

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 32
"""Weights that share a scale."""


def dense(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """A plain weight of the activations' type."""
    data = (torch.randn((rows, columns), generator=generator) * 0.1).to(dtype)
    return Weight(DENSE, (rows, columns), data, data.to)


def int4_g32_sym(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """Two weights a byte, the even input in the low half, each plus 8, and float16 scales [rows, columns / 32]."""
    shape = (rows, columns // BLOCK, BLOCK)
    scales = (0.001 + 0.003 * torch.rand(shape[:2], generator=generator)).half()
    scales[:, ::3] *= -1
    halves = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)
    packed = (halves[..., ::2] | (halves[..., 1::2] << 4)).reshape(rows, -1)
    plain = (scales.double()[..., None] * (halves.double() - 8)).reshape(rows, columns)
    scheme = QuantScheme(name="int4.g32.sym", bits=4, group_size=BLOCK)
    return Weight(scheme, (rows, columns), packed, plain.to, {"scales": scales})


GENERATORS: dict[str, Callable[[int, int, torch.Generator, torch.dtype], Weight]] = {
    "dense": dense,
    **weights_ggml.GENERATORS,
    "int4.g32.sym": int4_g32_sym,
}
"""Scheme name to `f(rows, columns, generator, activation type)`; columns is a multiple of 256."""
