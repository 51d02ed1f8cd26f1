"""Products with dense weights on the compiled kernels: operands of the model's type, sums in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from inferplane_api.errors import Unsupported
from inferplane_cpu.native.executor import TYPES, executor
from inferplane_cpu.native.structs import Kind, Linear

if TYPE_CHECKING:
    from inferplane_api.quant import Weight


class PackedMatrix(NamedTuple):
    """A matrix [n, k] in the order in which the kernels read it."""

    data: torch.Tensor
    n: int
    k: int


def flat_rows(x: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    """x [..., k] as rows of elements side by side. Raises ValueError for another width or type."""
    if x.shape[-1] != k or x.dtype != dtype:
        raise ValueError(f"x is {list(x.shape)} of {x.dtype}, the weight takes [..., {k}] of {dtype}")
    flat = x if x.dim() == 2 else x.reshape(-1, k)
    return flat if flat.stride(1) == 1 else flat.contiguous()


class NativeLinear:
    """Implements `inferplane_api.quant.LinearKernel` for dense weights."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        if dtype not in TYPES:
            raise Unsupported(f"cpu.native_linear does not compute in {dtype}", remedy="use float32 or bfloat16")
        self._dtype = dtype

    def pack(self, weights: list[Weight]) -> PackedMatrix:
        """The stacked weights in panels of output features, see kernels/kernels.inl."""
        run = executor()
        n, k = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
        data = run.weights.take(run.packed_bytes(self._dtype, n, k))
        first = 0
        for weight in weights:
            part = weight.data.to(device="cpu", dtype=self._dtype)
            if part.stride(1) != 1:
                part = part.contiguous()
            run.pack(part, first, n, data)
            first += weight.shape[0]
        return PackedMatrix(data, n, k)

    def apply(self, x: torch.Tensor, packed: PackedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., k] gives [..., n], in x's dtype."""
        return self._product(x, packed, bias, self._dtype)

    def apply_float32(self, x: torch.Tensor, packed: PackedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
        """The same with its float32 sums as they are."""
        return self._product(x, packed, bias, torch.float32)

    def _product(
        self, x: torch.Tensor, packed: PackedMatrix, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        flat = flat_rows(x, packed.k, self._dtype)
        out = torch.empty((flat.shape[0], packed.n), dtype=dtype)
        arguments = Linear(
            rows=flat.shape[0], x=flat.data_ptr(), packed=packed.data.data_ptr(),
            bias=None if bias is None else bias.data_ptr(), y=out.data_ptr(), x_stride=flat.stride(0),
            y_stride=packed.n, n=packed.n, k=packed.k, out_f32=dtype == torch.float32,
        )  # fmt: skip
        executor().run(Kind.LINEAR, x.dtype, arguments, (packed.data, bias))
        return out if x.dim() == 2 else out.view(*x.shape[:-1], packed.n)
