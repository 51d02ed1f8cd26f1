"""Area "linear": every scheme that a linear kernel declares, packed and applied, against the dequantized product."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from inferplane_api.quant import Float32Products
from inferplane_api.testing.buckets import bucket_for, pad_rows
from inferplane_api.testing.case import Case, Lie, NotTested
from inferplane_api.testing.compare import difference, same_bytes
from inferplane_api.testing.requirements import accept_kernel, requirement_cases
from inferplane_api.testing.weights import GENERATORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.quant import Weight
    from inferplane_api.spec import KernelSpec
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

ANY_SCHEME = "*"
IN_FEATURES = 256
STACKS = {"one weight": (48,), "three stacked weights": (64, 32, 33)}
ROWS = ((0,), (1,), (5,), (33,), (1030,), (2, 3))
"""Leading dimensions of x: no token, one, some, many, and more than one dimension."""

TOLERANCES = {"float32": (1e-5, 1e-5), "bfloat16": (1.6e-2, 1e-2), "float16": (2e-3, 2e-3)}
"""(relative, absolute); the absolute one is multiplied with the product's usual size."""


def cases(declarations: Declarations) -> list[Case]:
    """One case a kernel, scheme and type."""
    found = []
    for spec in declarations.kernels("linear"):
        found += requirement_cases(declarations, "linear", spec)
        schemes = sorted(set(spec.schemes) - {ANY_SCHEME})
        if ANY_SCHEME in spec.schemes:
            schemes = sorted({*schemes, *GENERATORS})
        for scheme in schemes:
            for dtype in sorted(spec.dtypes):
                claim = f"{spec.id} declares scheme {scheme} in {dtype}"
                found.append(_case(spec, f"{scheme}-{dtype}", claim, partial(_check, spec, scheme, dtype)))
    for spec in declarations.kernels("grouped_linear"):
        claim = f"{spec.id} declares grouped linear kernels"
        found.append(_case(spec, "grouped", claim, _no_grouped_cases))
    return found


def _case(spec: KernelSpec, name: str, claim: str, run: Callable[[Kit], None]) -> Case:
    return Case(area="linear", name=f"{spec.id}-{name}", level="performance", claim=claim, run=run, proves=spec.id)


def _no_grouped_cases(kit: Kit) -> None:
    raise NotTested("the kit has no cases for grouped linear kernels")


def _check(spec: KernelSpec, scheme: str, dtype: str, kit: Kit) -> None:
    accept_kernel(spec, dtype, scheme, kit)
    if scheme not in GENERATORS:
        known = ", ".join(sorted(GENERATORS))
        raise NotTested(f"the kit makes no weights of scheme {scheme}; it makes {known}")
    kernel = kit.load(spec.load)(kit.torch_device, getattr(torch, dtype))
    generator = torch.Generator().manual_seed(5)
    for stack, outs in STACKS.items():
        weights = [GENERATORS[scheme](rows, IN_FEATURES, generator, getattr(torch, dtype)) for rows in outs]
        packed = kernel.pack(weights)
        for with_bias in (False, True):
            bias = torch.randn(sum(outs), generator=generator) if with_bias else None
            problem = _compare(spec, kernel, packed, weights, bias, dtype, kit)
            if problem:
                what = f"{stack} {'with' if with_bias else 'without'} a bias"
                raise Lie(f"{spec.id} declares scheme {scheme} in {dtype} but fails for {what}: {problem}")


def _rounding(spec: KernelSpec, x: torch.Tensor, truth: torch.Tensor) -> float:
    """What rounding x to the integers that a kernel declares may cost an output: six standard deviations of the sum of
    independent, evenly distributed errors."""
    if spec.activation_bits is None or not x.numel():
        return 0.0
    step = float(x.abs().max()) / ((1 << (spec.activation_bits - 1)) - 1)
    return 6.0 * step / math.sqrt(12) * float(truth.norm(dim=1).max())


def _compare(
    spec: KernelSpec, kernel: Any, packed: Any, weights: list[Weight], bias: torch.Tensor | None, dtype: str, kit: Kit
) -> str:
    device, kind = kit.torch_device, getattr(torch, dtype)
    truth = torch.cat([weight.dequantize(torch.float64) for weight in weights])
    own_bias = None if bias is None else bias.to(kind)
    generator = torch.Generator().manual_seed(6)
    for shape in ROWS:
        x = torch.randn((*shape, IN_FEATURES), generator=generator).to(kind)
        size = bucket_for(shape[0], kit.spec.scheduling.token_buckets)
        if size is None or (len(shape) > 1 and kit.spec.scheduling.token_buckets):
            continue
        given = pad_rows(x, size).to(device)
        kept = given.clone()
        y = kernel.apply(given, packed, None if own_bias is None else own_bias.to(device))
        if not same_bytes(given, kept):
            return "it changes x"
        held = y.clone()
        kernel.apply(given.flip(0), packed, None if own_bias is None else own_bias.to(device))
        if not same_bytes(y, held):
            return "a later call changes the result of an earlier one"
        if y.dtype != kind:
            return f"the result's type is {y.dtype}, not {kind}"
        want = x.double() @ truth.T + (0.0 if own_bias is None else own_bias.double())
        usual = float(truth.std()) * IN_FEATURES**0.5
        rtol, atol = TOLERANCES[dtype]
        atol = atol * max(1.0, usual) + _rounding(spec, x, truth)
        if problem := difference(y[: shape[0]], want, rtol, atol):
            return f"x{[*shape, IN_FEATURES]}: {problem}"
        if isinstance(kernel, Float32Products):
            sums = kernel.apply_float32(given, packed, None if own_bias is None else own_bias.to(device))
            if sums.dtype != torch.float32:
                return f"the result of apply_float32 is of {sums.dtype}"
            if problem := difference(sums[: shape[0]], want, rtol, atol):
                return f"x{[*shape, IN_FEATURES]}: apply_float32: {problem}"
    return ""
