"""The contract's ops on the compiled kernels; shapes and results are the references'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from inferplane_api.reference import ops as reference
from inferplane_cpu.native.executor import TYPES, executor
from inferplane_cpu.native.structs import (
    Activation,
    Angles,
    Embedding,
    Gated,
    GumbelNoise,
    Kind,
    Largest,
    RmsNorm,
    Rope,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """ids [T] int64, weight [V, size] give [T, size]."""
    if ids.dim() != 1 or not weight.is_contiguous() or weight.dtype not in TYPES or not ids.is_contiguous():
        return reference.embedding(ids, weight)
    out = torch.empty((len(ids), weight.shape[1]), dtype=weight.dtype)
    arguments = Embedding(
        rows=len(ids), ids=ids.data_ptr(), table=weight.data_ptr(), y=out.data_ptr(), y_stride=out.stride(0),
        size=weight.shape[1], vocab=weight.shape[0],
    )  # fmt: skip
    executor().run(Kind.EMBEDDING, weight.dtype, arguments, (weight,))
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """x [..., size]; the sum of squares and the product with the weight are in float32, rounded once."""
    source = _rows(x)
    if source is None or weight.dtype != x.dtype:
        return reference.rms_norm(x, weight, eps, offset)
    out = torch.empty(x.shape, dtype=x.dtype)
    size = x.shape[-1]
    rows, inner = (x.shape[0], x.shape[1]) if x.dim() == 3 else (source.shape[0], 1)
    arguments = RmsNorm(
        rows=rows, x=source.data_ptr(), weight=weight.data_ptr(), y=out.data_ptr(), x_stride=source.stride(0),
        y_stride=inner * size, size=size, inner=inner, eps=eps, offset=offset,
    )  # fmt: skip
    executor().run(Kind.RMS_NORM, x.dtype, arguments, (weight,))
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normalised sum, sum), the sum rounded to the type before it is normalised."""
    usable = x.dim() == 2 and x.stride(-1) == residual.stride(-1) == 1 and x.dtype in TYPES
    if not usable or not x.dtype == residual.dtype == weight.dtype or x.shape != residual.shape:
        return reference.add_rms_norm(x, residual, weight, eps, offset)
    out, total = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    size = x.shape[-1]
    arguments = RmsNorm(
        rows=x.shape[0], x=x.data_ptr(), residual=residual.data_ptr(), weight=weight.data_ptr(),
        total=total.data_ptr(), y=out.data_ptr(), x_stride=x.stride(0), residual_stride=residual.stride(0),
        total_stride=size, y_stride=size, size=size, inner=1, eps=eps, offset=offset,
    )  # fmt: skip
    executor().run(Kind.RMS_NORM, x.dtype, arguments, (weight,))
    return out, total


def rope_angles(
    positions: torch.Tensor, frequencies: torch.Tensor, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions [T] int64, frequencies [R/2] float32 give (cos, sin), both [T, R/2] float32."""
    if not (positions.is_contiguous() and frequencies.is_contiguous() and frequencies.dtype == torch.float32):
        return reference.rope_angles(positions, frequencies, factor)
    rows, half = len(positions), len(frequencies)
    cos, sin = torch.empty((rows, half), dtype=torch.float32), torch.empty((rows, half), dtype=torch.float32)
    arguments = Angles(
        rows=rows, positions=positions.data_ptr(), frequencies=frequencies.data_ptr(), cos=cos.data_ptr(),
        sin=sin.data_ptr(), half=half, factor=factor,
    )  # fmt: skip
    executor().run(Kind.ANGLES, torch.float32, arguments, (frequencies,))
    return cos, sin


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [N, V] float32 give (values [N] float32, ids [N] int64)."""
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or logits.shape[1] == 0:
        return reference.largest(logits)
    rows, size = logits.shape
    values, ids = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.int64)
    arguments = Largest(
        rows=rows, x=logits.data_ptr(), values=values.data_ptr(), ids=ids.data_ptr(), x_stride=logits.stride(0), n=size
    )
    executor().run(Kind.LARGEST, torch.float32, arguments)
    return values, ids


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """seeds, positions [N] int64, ids [N, C] int64 give [N, C] float32. A row that asks for the whole vocabulary shares
    each block of four words."""
    seeds, positions = seeds.contiguous(), positions.contiguous()
    rows, count = ids.shape
    whole = rows > 0 and ids.stride(0) == 0 and torch.equal(ids[0], torch.arange(count))
    if not whole and ids.stride(1) != 1:
        ids = ids.contiguous()
    out = torch.empty((rows, count), dtype=torch.float32)
    arguments = GumbelNoise(
        rows=rows, seeds=seeds.data_ptr(), positions=positions.data_ptr(), ids=None if whole else ids.data_ptr(),
        y=out.data_ptr(), ids_stride=ids.stride(0), n=count,
    )  # fmt: skip
    executor().run(Kind.GUMBEL_NOISE, torch.float32, arguments, (seeds, positions, ids))
    return out


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H, D] and k [T, K, D] rotated; at once where they are neighbours in memory, as parts of one product are."""
    if not _rotatable(q, cos, sin) or not _rotatable(k, cos, sin):
        return reference.rope(q, k, cos, sin, interleaved)
    _, heads, size = q.shape
    both = heads + k.shape[1]
    follows = k.data_ptr() == q.data_ptr() + heads * size * q.element_size() and q.stride() == k.stride()
    if follows and q.stride(0) >= both * size:
        rotated = _rotated(q, both, cos, sin, interleaved)
        return rotated[:, :heads], rotated[:, heads:]
    return _rotated(q, heads, cos, sin, interleaved), _rotated(k, k.shape[1], cos, sin, interleaved)


def _rotatable(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    packed = x.dim() == 3 and x.stride()[1:] == (x.shape[2], 1) and x.dtype in TYPES
    return packed and cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()


def _rotated(x: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    tokens, _, size = x.shape
    out = torch.empty((tokens, heads, size), dtype=x.dtype)
    arguments = Rope(
        rows=tokens, x=x.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr(), y=out.data_ptr(), x_stride=x.stride(0),
        y_stride=heads * size, angle_stride=cos.shape[-1], heads=heads, size=size, half=cos.shape[-1],
        interleaved=interleaved,
    )  # fmt: skip
    executor().run(Kind.ROPE, x.dtype, arguments)
    return out


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 n] gives silu(first half) * second half, [T, n]."""
    return _gated(x, Activation.SILU) if _gateable(x) else reference.silu_mul(x)


def gelu_tanh_mul(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 n] gives gelu(first half), tanh form, * second half, [T, n]."""
    return _gated(x, Activation.GELU_TANH) if _gateable(x) else reference.gelu_tanh_mul(x)


def gelu_mul(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 n] gives gelu(first half) * second half, [T, n]."""
    return _gated(x, Activation.GELU) if _gateable(x) else reference.gelu_mul(x)


def _gateable(x: torch.Tensor) -> bool:
    return x.dim() == 2 and x.stride(1) == 1 and x.dtype in TYPES


def _gated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    rows, n = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, n), dtype=x.dtype)
    arguments = Gated(
        rows=rows, x=x.data_ptr(), y=out.data_ptr(), x_stride=x.stride(0), y_stride=n, n=n, activation=activation
    )
    executor().run(Kind.GATED, x.dtype, arguments)
    return out


def _rows(x: torch.Tensor) -> torch.Tensor | None:
    """x as vectors a fixed distance apart: [T, size], or [T, heads, size] with packed heads."""
    if x.dtype not in TYPES or x.stride(-1) != 1:
        return None
    if x.dim() == 3 and x.stride(1) == x.shape[2]:
        return x
    if x.dim() == 2:
        return x
    return x.reshape(-1, x.shape[-1]) if x.is_contiguous() and x.dim() > 0 else None


class NativeOps:
    """Implements `inferplane_api.ops.OpProvider`."""

    def ops(self) -> Mapping[str, Callable[..., Any]]:
        """The ops that the descriptor declares."""
        return {
            "embedding@1": embedding,
            "rms_norm@1": rms_norm,
            "add_rms_norm@1": add_rms_norm,
            "rope@1": rope,
            "rope_angles@1": rope_angles,
            "silu_mul@1": silu_mul,
            "gelu_tanh_mul@1": gelu_tanh_mul,
            "gelu_mul@1": gelu_mul,
            "largest@1": largest,
            "gumbel_noise@1": gumbel_noise,
        }


PROVIDER = NativeOps()
