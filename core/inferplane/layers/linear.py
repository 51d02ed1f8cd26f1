"""Linear layers: several checkpoint weights stacked into one product, on the kernel of each weight's scheme."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from inferplane.layers.layer import Layer, check_shape, read_tensor
from inferplane.log import get_logger
from inferplane_api.quant import DENSE, LinearKernel, QuantScheme, Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from inferplane.layers.context import ModelContext
    from inferplane_api.checkpoint import Checkpoint

logger = get_logger("layers.linear")


class LinearFactory:
    """Gives the kernel that a plan chose for a scheme, or the dequantizing reference kernel, announced once a scheme.

    kernels: per scheme name, a kernel made for the model's device and dtype. reference: takes weights of any scheme.
    announce: told a line for a person the first time a quantized scheme goes to the reference; logged by default.
    """

    def __init__(
        self,
        kernels: Mapping[str, LinearKernel],
        reference: LinearKernel,
        announce: Callable[[str], None] = logger.warning,
    ) -> None:
        self._kernels = dict(kernels)
        self._reference = reference
        self._announce = announce
        self._announced: set[str] = set()

    def has_kernel(self, scheme: QuantScheme) -> bool:
        """True when weights of this scheme stay packed."""
        kernel = self._kernels.get(scheme.name, self._reference)
        return type(kernel) is not type(self._reference)

    def kernel(self, scheme: QuantScheme) -> LinearKernel:
        """The kernel for weights of this scheme."""
        if not self.has_kernel(scheme):
            self.announce_dequantized(scheme)
        return self._kernels.get(scheme.name, self._reference)

    def announce_dequantized(self, scheme: QuantScheme) -> None:
        """Say, once, that weights of this scheme are kept dequantized. Says nothing of a dense scheme."""
        if scheme.name == DENSE.name or scheme.name in self._announced:
            return
        self._announced.add(scheme.name)
        self._announce(f"no kernel for {scheme.name} weights on this platform: they run dequantized")


class _Packed(NamedTuple):
    """Neighbouring weights of one scheme."""

    kernel: LinearKernel
    data: Any
    bias: torch.Tensor | None


class Linear(Layer):
    """y = x Wᵀ + b, where W stacks one or more checkpoint weights along the output.

    names: of the checkpoint modules, without ".weight"; out_features: of each. Weights of different schemes are packed
    apart and their outputs concatenated. bias: whether each module has a ".bias".
    """

    def __init__(
        self,
        context: ModelContext,
        names: Sequence[str],
        in_features: int,
        out_features: Sequence[int],
        *,
        bias: bool = False,
    ) -> None:
        self._context = context
        self._in_features = in_features
        self._parts = dict(zip(names, out_features, strict=True))
        self._has_bias = bias
        self._packed: list[_Packed] = []

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the parts."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, out_features in self._parts.items():
            shapes[f"{name}.weight"] = (out_features, self._in_features)
            if self._has_bias:
                shapes[f"{name}.bias"] = (out_features,)
        return shapes

    def read(self, checkpoint: Checkpoint) -> None:
        """Pack the weights."""
        weights = []
        for name in self._parts:
            weight = checkpoint.weight(f"{name}.weight")
            check_shape(f"{name}.weight", tuple(weight.shape), (self._parts[name], self._in_features))
            weights.append((name, weight))
        self._packed = []
        for _, run in groupby(weights, key=lambda item: item[1].scheme.name):
            members = list(run)
            bias = self._read_bias(checkpoint, [name for name, _ in members])
            self._packed.append(pack(self._context, [weight for _, weight in members], bias))

    def _read_bias(self, checkpoint: Checkpoint, names: list[str]) -> torch.Tensor | None:
        if not self._has_bias:
            return None
        dtype, device = self._context.dtype, self._context.device
        parts = [read_tensor(checkpoint, f"{name}.bias", (self._parts[name],), dtype, device) for name in names]
        return torch.cat(parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] gives [..., sum of out_features]."""
        outputs = [packed.kernel.apply(x, packed.data, packed.bias) for packed in self._packed]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


def pack(context: ModelContext, weights: list[Weight], bias: torch.Tensor | None = None) -> _Packed:
    """Lay out weights of one scheme with that scheme's kernel; without one they become dense and take that kernel."""
    scheme = weights[0].scheme
    kernel = context.linear.kernel(scheme)
    if not context.linear.has_kernel(scheme) and context.linear.has_kernel(DENSE):
        kernel = context.linear.kernel(DENSE)
        weights = [_dense(weight, context.dtype) for weight in weights]
    return _Packed(kernel, kernel.pack(weights), bias)


def _dense(weight: Weight, dtype: torch.dtype) -> Weight:
    data = weight.dequantize(dtype)
    return Weight(DENSE, weight.shape, data, data.to)
