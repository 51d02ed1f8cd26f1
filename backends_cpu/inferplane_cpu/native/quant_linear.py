"""Products with weights in ggml's block formats, which stay packed: activations rounded to 8 bits, sums of integers."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch

from inferplane_api.errors import Unsupported
from inferplane_cpu.native.executor import TYPES, executor
from inferplane_cpu.native.linear import flat_rows
from inferplane_cpu.native.structs import (
    QUANTIZED_BYTES,
    Kind,
    Quantize,
    QuantLinear,
    QuantPack,
    QuantRows,
    Scheme,
)

if TYPE_CHECKING:
    from inferplane_api.quant import Weight

GROUP = 32
"""Inputs that share a scale, of weights and of rounded activations."""

SCHEMES = {f"ggml.{scheme.name.lower()}": scheme for scheme in Scheme}

MOST_ROUNDED_TWICE = 8192
"""Activations that each thread rounds for itself; more are rounded together, before a barrier."""


class PackedBlocks(NamedTuple):
    """A matrix [n, k] in the order in which the kernels read it."""

    data: torch.Tensor
    n: int
    k: int
    scheme: Scheme


class NativeQuantLinear:
    """Implements `inferplane_api.quant.LinearKernel` for ggml's blocks.

    Each row of x is rounded to signed 8-bit integers with one scale for 32 inputs: an error of at most
    max|x| / 254 of the 32, times the sum of the weights' magnitudes. Weights are exact, but for the products of nested
    scales of Q4_K, Q5_K and Q6_K, which are rounded to float16.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        if dtype not in TYPES:
            raise Unsupported(f"cpu.native_quant does not compute in {dtype}", remedy="use float32 or bfloat16")
        self._dtype = dtype

    def pack(self, weights: list[Weight]) -> PackedBlocks:
        """The stacked weights in panels of output features, see kernels/quant.inl."""
        run, scheme = executor(), SCHEMES[weights[0].scheme.name]
        n, k = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        data = run.weights.take(run.quant_packed_bytes(scheme, n, k))
        too_large = ctypes.c_int32()
        first = 0
        for weight in weights:
            blocks = weight.data if weight.data.stride(1) == 1 else weight.data.contiguous()
            arguments = QuantPack(
                blocks=blocks.data_ptr(), stride=blocks.stride(0), packed=data.data_ptr(),
                too_large=ctypes.addressof(too_large), first=first, count=weight.shape[0], n=n, k=k, scheme=scheme,
            )  # fmt: skip
            run.run(Kind.QUANT_PACK, self._dtype, arguments)
            first += weight.shape[0]
        if too_large.value:
            raise Unsupported(
                f"a scale of these {weights[0].scheme.name} weights is beyond float16's range",
                remedy="compute with the dequantized weights: --platform-option weights=dequantized",
            )
        return PackedBlocks(data, n, k, scheme)

    def apply(self, x: torch.Tensor, packed: PackedBlocks, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., k] gives [..., n], in x's dtype."""
        return self._product(x, packed, bias, self._dtype)

    def apply_float32(self, x: torch.Tensor, packed: PackedBlocks, bias: torch.Tensor | None) -> torch.Tensor:
        """The same with its float32 sums as they are."""
        return self._product(x, packed, bias, torch.float32)

    def _product(
        self, x: torch.Tensor, packed: PackedBlocks, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        flat = flat_rows(x, packed.k, self._dtype)
        rows, run = flat.shape[0], executor()
        out = torch.empty((rows, packed.n), dtype=dtype)
        rounded = None
        if rows * packed.k > MOST_ROUNDED_TWICE:
            rounded = torch.empty(rows * (packed.k // GROUP) * QUANTIZED_BYTES, dtype=torch.uint8)
            quantize = Quantize(
                rows=rows, x=flat.data_ptr(), quantized=rounded.data_ptr(), x_stride=flat.stride(0), k=packed.k,
                scheme=packed.scheme,
            )  # fmt: skip
            run.run(Kind.QUANTIZE, x.dtype, quantize)
        arguments = QuantLinear(
            rows=rows, x=flat.data_ptr(), quantized=None if rounded is None else rounded.data_ptr(),
            packed=packed.data.data_ptr(), bias=None if bias is None else bias.data_ptr(), y=out.data_ptr(),
            x_stride=flat.stride(0), y_stride=packed.n, n=packed.n, k=packed.k, scheme=packed.scheme,
            out_f32=dtype == torch.float32,
        )  # fmt: skip
        run.run(Kind.QUANT_LINEAR, x.dtype, arguments, (packed.data, bias))
        return out if x.dim() == 2 else out.view(*x.shape[:-1], packed.n)

    def lookup(self, ids: torch.Tensor, packed: PackedBlocks) -> torch.Tensor:
        """ids [T] int64, each a row of the weights, give [T, k], exact but for the rounding to the dtype."""
        ids = ids.contiguous()
        out = torch.empty((len(ids), packed.k), dtype=self._dtype)
        arguments = QuantRows(
            rows=len(ids), ids=ids.data_ptr(), packed=packed.data.data_ptr(), y=out.data_ptr(), y_stride=packed.k,
            n=packed.n, k=packed.k, scheme=packed.scheme,
        )  # fmt: skip
        executor().run(Kind.QUANT_ROWS, self._dtype, arguments, (packed.data,))
        return out
