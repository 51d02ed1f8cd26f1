"""The three axes of quantization: a format reads, a scheme describes, a kernel computes. N formats + M devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class QuantScheme(msgspec.Struct, frozen=True, kw_only=True):
    """What a weight's numbers mean, independent of the file they came from: where formats and kernels meet."""

    name: str
    """The key that kernels are looked up by: "dense", "ggml.q4_1", "int4.g32.sym", ... It stands for one layout of
    `Weight.data` and `Weight.extras`; docs/add-format.md lists those in use."""
    bits: int
    group_size: int | None = None
    """Weights that share a scale along the input dimension; None: one per output row; 0: one per tensor."""
    symmetric: bool = True
    scale_dtype: str = "float16"
    activation_bits: int | None = None


DENSE = QuantScheme(name="dense", bits=16)
"""A plain floating-point weight."""


class Weight(NamedTuple):
    """One 2-D weight, [out_features, in_features], as the checkpoint has it."""

    scheme: QuantScheme
    shape: tuple[int, int]
    data: torch.Tensor
    """Scheme "dense": the weight itself; otherwise the packed bytes, [out_features, bytes_per_row] uint8."""
    dequantize: Callable[[torch.dtype], torch.Tensor]
    """The weight as a plain tensor [out_features, in_features] of the given dtype; always works."""
    extras: dict[str, torch.Tensor] | None = None
    """Scales, zero points and the like where the format keeps them apart."""


@runtime_checkable
class LinearKernel(Protocol):
    """y = x Wᵀ + b for weights of the schemes that its KernelSpec lists."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None: ...

    def pack(self, weights: list[Weight]) -> Any:
        """Lay out one weight, or several that share the input and are stacked along the output, once at load."""

    def apply(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in_features] gives [..., sum of out_features], in x's dtype; no later call changes it."""


@runtime_checkable
class Float32Products(Protocol):
    """A LinearKernel that can also give its sums unrounded: core asks it for logits, which are float32 in the end."""

    def apply_float32(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """As `LinearKernel.apply`, in float32 whatever x's dtype is."""


@runtime_checkable
class GroupedLinearKernel(Protocol):
    """The same for a group of experts, with tokens sorted by expert."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None: ...

    def pack(self, weights: list[list[Weight]]) -> Any:
        """Per expert, the stacked weights."""

    def apply(self, x: torch.Tensor, packed: Any, group_ends: torch.Tensor) -> torch.Tensor:
        """x [T, in] with rows sorted by expert, group_ends [experts] int32 gives [T, out]."""
