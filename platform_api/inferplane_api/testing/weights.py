"""Makes random weights of quantization schemes, packed as their format packs them, with the truth beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_api.quant import DENSE, QuantScheme, Weight

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 32
"""Weights that share a scale in the ggml schemes made here."""


def dense(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """A plain weight of the activations' type."""
    data = (torch.randn((rows, columns), generator=generator) * 0.1).to(dtype)
    return Weight(DENSE, (rows, columns), data, data.to)


def ggml_q8_0(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """Blocks of a float16 scale and 32 signed bytes (ggml's Q8_0): weight = scale * byte."""
    scales = _scales(rows, columns, generator)
    values = torch.randint(-127, 128, (rows, columns // BLOCK, BLOCK), generator=generator, dtype=torch.int8)
    packed = torch.cat((scales.view(torch.uint8), values.view(torch.uint8)), dim=-1)
    scheme = QuantScheme(name="ggml.q8_0", bits=8, group_size=BLOCK)
    return _weight(scheme, packed, scales, values)


def ggml_q4_0(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """Blocks of a float16 scale and 16 bytes (ggml's Q4_0): the low halves are weights 0 to 15, the high ones the
    rest; weight = scale * (half - 8)."""
    scales = _scales(rows, columns, generator)
    halves = torch.randint(0, 16, (rows, columns // BLOCK, BLOCK), generator=generator, dtype=torch.uint8)
    packed = torch.cat((scales.view(torch.uint8), halves[..., :16] | (halves[..., 16:] << 4)), dim=-1)
    scheme = QuantScheme(name="ggml.q4_0", bits=4, group_size=BLOCK)
    return _weight(scheme, packed, scales, halves.to(torch.int8) - 8)


def int4_g32_sym(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """Two weights a byte, the even input in the low half, each plus 8, and float16 scales [rows, columns / 32]."""
    scales = _scales(rows, columns, generator)
    halves = torch.randint(0, 16, (rows, columns // BLOCK, BLOCK), generator=generator, dtype=torch.uint8)
    packed = halves[..., ::2] | (halves[..., 1::2] << 4)
    scheme = QuantScheme(name="int4.g32.sym", bits=4, group_size=BLOCK)
    weight = _weight(scheme, packed, scales, halves.to(torch.int8) - 8)
    return weight._replace(extras={"scales": scales.squeeze(-1)})


def _scales(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """[rows, blocks, 1] float16; one in a block's place is negative, as real files have them."""
    scales = 0.001 + 0.003 * torch.rand((rows, columns // BLOCK, 1), generator=generator)
    scales[:, ::3] *= -1
    return scales.half()


def _weight(scheme: QuantScheme, packed: torch.Tensor, scales: torch.Tensor, values: torch.Tensor) -> Weight:
    rows = packed.shape[0]
    plain = scales.double() * values.double()
    return Weight(scheme, (rows, plain[0].numel()), packed.reshape(rows, -1), plain.reshape(rows, -1).to)


GENERATORS: dict[str, Callable[[int, int, torch.Generator, torch.dtype], Weight]] = {
    "dense": dense,
    "ggml.q8_0": ggml_q8_0,
    "ggml.q4_0": ggml_q4_0,
    "int4.g32.sym": int4_g32_sym,
}
"""Scheme name to `f(rows, columns, generator, activation type)`; columns is a multiple of 256."""
