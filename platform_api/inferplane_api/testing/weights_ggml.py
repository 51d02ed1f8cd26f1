"""Makes random weights in ggml's block formats, with the truth beside; packs what it drew and unpacks nothing.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from inferplane_api.quant import QuantScheme, Weight

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK, SUPER = 32, 256


def blocks(bits: int, minimum: bool, rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: 32 weights of a float16 scale, and a float16 minimum or an offset."""
    shape = (rows, columns // BLOCK)
    scales, low = _factors(shape, generator), _factors(shape, generator)
    q = torch.randint(1 if bits == 8 else 0, 2**bits, (*shape, BLOCK), generator=generator)
    parts = [_bytes(scales)]
    if minimum:
        parts.append(_bytes(low))
    if bits == 5:
        fifth = (q >> 4) << torch.arange(BLOCK)  # bit i is that of weight i
        parts.append(fifth.sum(-1, keepdim=True).to(torch.uint32).view(torch.uint8))
    parts.append((q - 128).to(torch.int8).view(torch.uint8) if bits == 8 else _nibbles(q[..., :16], q[..., 16:]))
    values = q.double() if minimum else q.double() - 2 ** (bits - 1)
    plain = scales.double()[..., None] * values + (low.double()[..., None] if minimum else 0.0)
    return _weight(f"ggml.q{bits}_{int(minimum)}", bits, BLOCK, parts, plain)


def k_blocks(bits: int, rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """Q4_K and Q5_K: 256 weights in 8 parts with 6-bit scales and minima, times a float16 factor of each."""
    shape = (rows, columns // SUPER)
    scale, low = _factors(shape, generator) / 32, _factors(shape, generator).abs() / 32
    scales, minima = (torch.randint(0, 64, (*shape, 8), generator=generator) for _ in range(2))
    q = torch.randint(0, 2**bits, (*shape, 8, BLOCK), generator=generator)
    first, last = slice(0, 4), slice(4, 8)
    packed = torch.cat(
        (
            scales[..., first] | ((scales[..., last] >> 4) << 6),
            minima[..., first] | ((minima[..., last] >> 4) << 6),
            (scales[..., last] & 15) | ((minima[..., last] & 15) << 4),
        ),
        -1,
    ).to(torch.uint8)
    parts = [_bytes(scale), _bytes(low), packed]
    if bits == 5:
        parts.append(((q >> 4) << torch.arange(8)[:, None]).sum(-2).to(torch.uint8))  # bit s is that of part s
    parts.append(_nibbles(q[..., ::2, :], q[..., 1::2, :]).flatten(-2))
    plain = (scale.double()[..., None] * scales)[..., None] * q - (low.double()[..., None] * minima)[..., None]
    return _weight(f"ggml.q{bits}_k", bits, BLOCK, parts, plain)


def q6_k(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Weight:
    """256 weights in 16 parts with signed 8-bit scales, times one float16 factor."""
    shape = (rows, columns // SUPER)
    scale = _factors(shape, generator) / 64
    scales = torch.randint(-127, 128, (*shape, 16), generator=generator)
    q = torch.randint(0, 64, (*shape, 2, 4, BLOCK), generator=generator)  # halves of four runs of 32
    low = _nibbles(q[..., :2, :], q[..., 2:, :])
    high = ((q >> 4) << torch.tensor([0, 2, 4, 6])[:, None]).sum(-2).to(torch.uint8)
    parts = [low.flatten(-3), high.flatten(-2), scales.to(torch.int8).view(torch.uint8), _bytes(scale)]
    plain = (scale.double()[..., None] * scales)[..., None] * (q.reshape(*shape, 16, 16) - 32)
    return _weight("ggml.q6_k", 6, 16, parts, plain)


def _factors(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """float16; one in a block's place is negative, as real files have them."""
    factors = 0.001 + 0.003 * torch.rand(shape, generator=generator)
    factors[:, ::3] *= -1
    return factors.half()


def _bytes(factors: torch.Tensor) -> torch.Tensor:
    return factors.half()[..., None].view(torch.uint8)


def _nibbles(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return ((low & 15) | ((high & 15) << 4)).to(torch.uint8)


def _weight(name: str, bits: int, group: int, parts: list[torch.Tensor], plain: torch.Tensor) -> Weight:
    rows = len(plain)
    packed = torch.cat(parts, -1).reshape(rows, -1)
    values = plain.reshape(rows, -1)
    scheme = QuantScheme(name=name, bits=bits, group_size=group)
    return Weight(scheme, (rows, values.shape[1]), packed, values.to)


GENERATORS: dict[str, Callable[[int, int, torch.Generator, torch.dtype], Weight]] = {
    "ggml.q4_0": partial(blocks, 4, False),
    "ggml.q4_1": partial(blocks, 4, True),
    "ggml.q5_0": partial(blocks, 5, False),
    "ggml.q5_1": partial(blocks, 5, True),
    "ggml.q8_0": partial(blocks, 8, False),
    "ggml.q4_k": partial(k_blocks, 4),
    "ggml.q5_k": partial(k_blocks, 5),
    "ggml.q6_k": q6_k,
}
