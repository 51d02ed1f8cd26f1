"""ggml blocks to floating point. The common types in torch; the rest through the `gguf` package's reference.

Layouts as in https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. The order of operations is that of
`gguf.quants`, so float32 results are equal to it bit for bit.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK = 1 << 17
"""Elements dequantized at a time: the float32 intermediates stay in a cache."""


def dequantize(data: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
    """Packed rows [rows, bytes_per_row] uint8 to [rows, columns] of `dtype`, by way of float32."""
    kind = GGMLQuantizationType(ggml_type)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    num_rows, row_bytes = data.shape
    num_columns = row_bytes // block_bytes * block_size
    out = torch.empty(num_rows, num_columns, dtype=dtype)
    unpack = _UNPACK.get(kind)
    step = max(1, _CHUNK // max(num_columns, 1))
    with _one_thread():
        for start in range(0, num_rows, step):
            rows = data[start : start + step]
            if unpack is not None:
                values = unpack(rows.reshape(-1, block_bytes))
            else:
                values = torch.from_numpy(quants.dequantize(rows.numpy(), kind))
            out[start : start + step] = values.view(-1, num_columns)
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    """Weights are read while other processes start. Threads that wait for each other after every small operation are
    then up to forty times slower than one thread (measured on two cores), and at best a third faster."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def can_dequantize(ggml_type: int) -> bool:
    """True for every type that the `gguf` package can dequantize."""
    kind = GGMLQuantizationType(ggml_type)
    return kind in _UNPACK or kind in quants._type_traits  # no public way to ask


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at a byte offset of each block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 2, n]: the low halves, then the high ones."""
    return torch.stack((packed & 15, packed >> 4), dim=-2)


def _bits(packed: torch.Tensor, width: int) -> torch.Tensor:
    """[..., n] bytes to [..., 8 / width, n]: fields of `width` bits, lowest first."""
    mask = (1 << width) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, width)], dim=-2)


def _high_bits(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The 32 bits at a byte offset, bit i for weight i, shifted into place as the fifth: [blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((blocks[:, at : at + 4, None] >> shifts) & 1).view(-1, 32) << 4


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    q = _nibbles(blocks[:, 2:]).view(-1, 32).to(torch.int8) - 8
    return _half(blocks, 0) * q


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return (_half(blocks, 0) * _nibbles(blocks[:, 4:]).view(-1, 32)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    q = _nibbles(blocks[:, 6:]).view(-1, 32) | _high_bits(blocks, 2)
    return _half(blocks, 0) * (q.to(torch.int8) - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    q = _nibbles(blocks[:, 8:]).view(-1, 32) | _high_bits(blocks, 4)
    return (_half(blocks, 0) * q).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8)


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima of the 8 sub-blocks of a Q4_K or Q5_K block, float32 [blocks, 8, 1] each."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), dim=1)
    return (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * minima)[:, :, None]


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _k_scales(blocks)
    q = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return (scales * q).sub_(minima)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _k_scales(blocks)
    q = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    q |= _bits(blocks[:, 16:48], 1) << 4
    return (scales * q).sub_(minima)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 8, 32)
    high = _bits(blocks[:, 128:192].view(-1, 2, 32), 2).view(-1, 8, 32)
    q = ((low | (high << 4)).to(torch.int8) - 32).view(-1, 16, 16)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return scales[:, :, None] * q


_Type = GGMLQuantizationType
_UNPACK: dict[GGMLQuantizationType, Callable[[torch.Tensor], torch.Tensor]] = {
    _Type.Q4_0: _q4_0,
    _Type.Q4_1: _q4_1,
    _Type.Q5_0: _q5_0,
    _Type.Q5_1: _q5_1,
    _Type.Q8_0: _q8_0,
    _Type.Q4_K: _q4_k,
    _Type.Q5_K: _q5_k,
    _Type.Q6_K: _q6_k,
}
