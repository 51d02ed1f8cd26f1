"""The C interface's structures, field for field as kernels/abi.h has them; knows no torch and no meaning."""

from __future__ import annotations

import ctypes
import enum

_I32, _I64, _F32, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class Kind(enum.IntEnum):
    """Operations."""

    LINEAR = 0
    EMBEDDING = 1
    RMS_NORM = 2
    ROPE = 3
    GATED = 4
    KV_WRITE = 5
    ATTENTION = 6
    QUANTIZE = 7
    QUANT_LINEAR = 8
    QUANT_PACK = 9
    QUANT_ROWS = 10
    ANGLES = 11
    LARGEST = 12
    PACK = 13
    GUMBEL_NOISE = 14


class Activation(enum.IntEnum):
    """Of a gated product."""

    SILU = 0
    GELU_TANH = 1
    GELU = 2


class Op(ctypes.Structure):
    """One entry of a list of operations."""

    _fields_ = (("kind", _I32), ("type", _I32), ("args", _PTR))


class Linear(ctypes.Structure):
    """Arguments of LINEAR."""

    _fields_ = (
        ("rows", _I64), ("x", _PTR), ("packed", _PTR), ("bias", _PTR), ("y", _PTR), ("x_stride", _I64),
        ("y_stride", _I64), ("n", _I32), ("k", _I32), ("out_f32", _I32),
    )  # fmt: skip


class Pack(ctypes.Structure):
    """Arguments of PACK."""

    _fields_ = (
        ("w", _PTR), ("stride", _I64), ("packed", _PTR), ("first", _I32), ("count", _I32), ("n", _I32), ("k", _I32),
    )  # fmt: skip


class Embedding(ctypes.Structure):
    """Arguments of EMBEDDING."""

    _fields_ = (
        ("rows", _I64), ("ids", _PTR), ("table", _PTR), ("y", _PTR), ("y_stride", _I64), ("size", _I32),
        ("vocab", _I32),
    )  # fmt: skip


class RmsNorm(ctypes.Structure):
    """Arguments of RMS_NORM."""

    _fields_ = (
        ("rows", _I64), ("x", _PTR), ("residual", _PTR), ("weight", _PTR), ("total", _PTR), ("y", _PTR),
        ("x_stride", _I64), ("residual_stride", _I64), ("total_stride", _I64), ("y_stride", _I64), ("size", _I32),
        ("inner", _I32), ("eps", _F32), ("offset", _F32),
    )  # fmt: skip


class Angles(ctypes.Structure):
    """Arguments of ANGLES."""

    _fields_ = (
        ("rows", _I64), ("positions", _PTR), ("frequencies", _PTR), ("cos", _PTR), ("sin", _PTR), ("half", _I32),
        ("factor", _F32),
    )  # fmt: skip


class Largest(ctypes.Structure):
    """Arguments of LARGEST."""

    _fields_ = (
        ("rows", _I64), ("x", _PTR), ("values", _PTR), ("ids", _PTR), ("x_stride", _I64), ("n", _I64),
    )  # fmt: skip


class GumbelNoise(ctypes.Structure):
    """Arguments of GUMBEL_NOISE."""

    _fields_ = (
        ("rows", _I64), ("seeds", _PTR), ("positions", _PTR), ("ids", _PTR), ("y", _PTR), ("ids_stride", _I64),
        ("n", _I64),
    )  # fmt: skip


class Rope(ctypes.Structure):
    """Arguments of ROPE."""

    _fields_ = (
        ("rows", _I64), ("x", _PTR), ("cos", _PTR), ("sin", _PTR), ("y", _PTR), ("x_stride", _I64),
        ("y_stride", _I64), ("angle_stride", _I64), ("heads", _I32), ("size", _I32), ("half", _I32),
        ("interleaved", _I32),
    )  # fmt: skip


class Gated(ctypes.Structure):
    """Arguments of GATED."""

    _fields_ = (
        ("rows", _I64), ("x", _PTR), ("y", _PTR), ("x_stride", _I64), ("y_stride", _I64), ("n", _I32),
        ("activation", _I32),
    )  # fmt: skip


class Cache(ctypes.Structure):
    """A layer's keys and values."""

    _fields_ = (
        ("k", _PTR), ("v", _PTR), ("page_stride", _I64), ("token_stride", _I64), ("head_stride", _I64),
        ("tokens_per_page", _I32), ("type", _I32),
    )  # fmt: skip


class KvWrite(ctypes.Structure):
    """Arguments of KV_WRITE."""

    _fields_ = (
        ("rows", _I64), ("k", _PTR), ("v", _PTR), ("slots", _PTR), ("k_stride", _I64), ("v_stride", _I64),
        ("cache", Cache), ("heads", _I32), ("size", _I32),
    )  # fmt: skip


class Batch(ctypes.Structure):
    """A step's rows."""

    _fields_ = (
        ("num_rows", _I32), ("num_decode_rows", _I32), ("num_tokens", _I32), ("reserved", _I32), ("query_start", _PTR),
        ("seq_lens", _PTR), ("page_table", _PTR), ("table_stride", _I64),
    )  # fmt: skip


class Attention(ctypes.Structure):
    """Arguments of ATTENTION."""

    _fields_ = (
        ("rows", _I64), ("batch", _PTR), ("q", _PTR), ("out", _PTR), ("lse", _PTR), ("q_stride", _I64),
        ("out_stride", _I64), ("cache", Cache), ("heads", _I32), ("kv_heads", _I32), ("size", _I32), ("window", _I32),
        ("scale", _F32), ("softcap", _F32),
    )  # fmt: skip


class Scheme(enum.IntEnum):
    """ggml's block formats."""

    Q4_0 = 0
    Q4_1 = 1
    Q5_0 = 2
    Q5_1 = 3
    Q8_0 = 4
    Q4_K = 5
    Q5_K = 6
    Q6_K = 7


QUANTIZED_BYTES = 48
"""Of a group of 32 rounded activations."""


class Quantize(ctypes.Structure):
    """Arguments of QUANTIZE."""

    _fields_ = (("rows", _I64), ("x", _PTR), ("quantized", _PTR), ("x_stride", _I64), ("k", _I32), ("scheme", _I32))


class QuantLinear(ctypes.Structure):
    """Arguments of QUANT_LINEAR."""

    _fields_ = (
        ("rows", _I64), ("x", _PTR), ("quantized", _PTR), ("packed", _PTR), ("bias", _PTR), ("y", _PTR),
        ("x_stride", _I64), ("y_stride", _I64), ("n", _I32), ("k", _I32), ("scheme", _I32), ("out_f32", _I32),
    )  # fmt: skip


class QuantPack(ctypes.Structure):
    """Arguments of QUANT_PACK."""

    _fields_ = (
        ("blocks", _PTR), ("stride", _I64), ("packed", _PTR), ("too_large", _PTR), ("first", _I32), ("count", _I32),
        ("n", _I32), ("k", _I32), ("scheme", _I32),
    )  # fmt: skip


class QuantRows(ctypes.Structure):
    """Arguments of QUANT_ROWS."""

    _fields_ = (
        ("rows", _I64), ("ids", _PTR), ("packed", _PTR), ("y", _PTR), ("y_stride", _I64), ("n", _I32), ("k", _I32),
        ("scheme", _I32),
    )  # fmt: skip
