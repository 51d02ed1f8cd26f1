"""The compiled ops and products against the reference in float64, and recorded steps against eager ones."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import torch

from inferplane_api.errors import InvalidValue, Unsupported
from inferplane_api.ops import SCHEMAS
from inferplane_api.quant import DENSE, Weight
from inferplane_api.reference import ops as reference_ops
from inferplane_cpu import descriptor
from inferplane_cpu.native import executor
from inferplane_cpu.native.graphs import NativeGraphs
from inferplane_cpu.native.linear import NativeLinear
from inferplane_cpu.native.ops import PROVIDER

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


pytestmark = pytest.mark.usefixtures("isa")


def test_the_forced_instruction_set_is_the_one_that_runs(isa: str) -> None:
    assert executor.executor().isa == isa


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    executor.configure(1, isa="vax")
    with pytest.raises(InvalidValue, match="portable"):
        executor.executor()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("identifier", descriptor.NATIVE_OPS.ops)
def test_ops(identifier: str, dtype: str) -> None:
    schema = SCHEMAS[identifier.partition("@")[0]]
    op, reference = PROVIDER.ops()[identifier], _attribute(schema.reference)
    relative, absolute = schema.tolerances[dtype]
    for case in _attribute(schema.generator)(TYPES[dtype], torch.device("cpu"), torch.Generator().manual_seed(5)):
        exact = {name: _double(value) for name, value in case.items()}
        kinds = [value.dtype for value in _tuple(reference(**case))]
        for found, kind, expected in zip(_tuple(op(**case)), kinds, _tuple(reference(**exact)), strict=True):
            assert found.dtype == kind
            torch.testing.assert_close(found.double(), expected.double(), rtol=relative, atol=absolute)


def _attribute(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_not_a_number_is_the_largest() -> None:
    logits = torch.zeros(3, 49)
    logits[0, 3] = logits[2, 48] = torch.nan
    values, _ = PROVIDER.ops()["largest@1"](logits)
    assert values.isnan().tolist() == [True, False, True]


@pytest.mark.parametrize("count", [1, 3, 64, 65, 4099, 49152])
def test_noise_is_the_references_bit_for_bit(count: int) -> None:
    """A seed must give the same text on every instruction set, and whether a token is drawn among all or among few."""
    generator = torch.Generator().manual_seed(count)
    seeds = torch.randint(-(2**63), 2**63 - 1, (3,), generator=generator)
    positions = torch.tensor([0, 1, 2**33 + 5])
    scattered = torch.randint(0, 2**33, (3, count), generator=generator)
    noise = PROVIDER.ops()["gumbel_noise@1"]
    whole = torch.arange(count).expand(3, count)
    for ids in (whole, whole + 1, whole.flip(1), scattered, scattered.t().contiguous().t()):
        assert torch.equal(noise(seeds, positions, ids), reference_ops.gumbel_noise(seeds, positions, ids))
    empty = torch.empty(0, dtype=torch.int64)
    assert noise(empty, empty, torch.empty((0, count), dtype=torch.int64)).shape == (0, count)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (31, 7), (33, 64), (100, 129), (96, 576), (640, 70)])
@pytest.mark.parametrize("rows", [1, 2, 3, 14, 15, 29, 300])
def test_products(dtype: str, shape: tuple[int, int], rows: int) -> None:
    """Odd sizes, two stacked weights, a bias, and rows of x that lie apart."""
    generator = torch.Generator().manual_seed(rows)
    n, k = shape
    kind = TYPES[dtype]
    first, second = (torch.randn(count, k, generator=generator).to(kind) for count in (n, 5))
    bias = torch.randn(n + 5, generator=generator).to(kind)
    x = torch.randn(rows, k + 3, generator=generator).to(kind)[:, :k]
    kernel = NativeLinear(torch.device("cpu"), kind)
    packed = kernel.pack([_dense(first), _dense(second)])
    weight = torch.cat([first, second]).double()
    for given in (None, bias):
        found = kernel.apply(x, packed, given)
        expected = x.double() @ weight.t() + (0 if given is None else given.double())
        # float32: the sum's rounding grows with its terms; bfloat16: one rounding of the result on top
        limit = 2e-6 * k**0.5 if kind == torch.float32 else 2**-8
        torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit * 4)
        unrounded = kernel.apply_float32(x, packed, given)
        assert torch.equal(unrounded.to(kind), found)
        torch.testing.assert_close(unrounded.double(), expected, rtol=2e-6 * k**0.5, atol=8e-6 * k**0.5)
    assert kernel.apply(x[:0], packed, None).shape == (0, n + 5)
    assert torch.equal(kernel.apply(x.reshape(1, rows, k), packed, bias)[0], kernel.apply(x, packed, bias))


def _dense(weight: torch.Tensor) -> Weight:
    return Weight(DENSE, (weight.shape[0], weight.shape[1]), weight, weight.to)


def test_a_rows_product_does_not_depend_on_its_neighbours() -> None:
    """What a request gets must not change with the batch: bitwise, whatever rows are computed together."""
    generator = torch.Generator().manual_seed(3)
    kernel = NativeLinear(torch.device("cpu"), torch.bfloat16)
    packed = kernel.pack([_dense(torch.randn(200, 576, generator=generator).bfloat16())])
    x = torch.randn(70, 576, generator=generator).bfloat16()
    alone = torch.cat([kernel.apply(x[i : i + 1], packed, None) for i in range(3)])
    together = kernel.apply(x, packed, None)[:3]
    torch.testing.assert_close(alone, together, rtol=2**-7, atol=1e-2)


def test_wrong_operands_are_refused() -> None:
    kernel = NativeLinear(torch.device("cpu"), torch.bfloat16)
    packed = kernel.pack([_dense(torch.zeros(4, 8, dtype=torch.bfloat16))])
    with pytest.raises(ValueError, match="bfloat16"):
        kernel.apply(torch.zeros(1, 8), packed, None)
    with pytest.raises(Unsupported, match="float16"):
        NativeLinear(torch.device("cpu"), torch.float16)


@torch.inference_mode()
def test_a_replay_computes_the_step_anew() -> None:
    """Kernels, torch's own calls between them, views, in-place writes and memory that is used twice."""
    ops = PROVIDER.ops()
    x, weight, positions = torch.randn(3, 64), torch.randn(64), torch.arange(3.0)
    kernel = NativeLinear(torch.device("cpu"), torch.float32)
    packed = kernel.pack([_dense(torch.randn(128, 64))])

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.empty(3, 64)
        hidden.copy_(x)
        angles = positions.unsqueeze(-1) * torch.arange(1, 9)
        for _ in range(5):
            hidden = ops["rms_norm@1"](ops["silu_mul@1"](kernel.apply(hidden, packed, None)), weight, 1e-6)
        q, _ = ops["rope@1"](hidden.view(3, 4, 16), hidden.view(3, 4, 16), angles.cos(), angles.sin())
        return q.flatten(1).clone(), hidden * 2

    graphs = NativeGraphs(executor.executor())
    replay = graphs.capture((3,), step)
    for _ in range(3):
        x.normal_()
        positions += 7
        expected = step()
        for found, wanted in zip(replay(), expected, strict=True):
            assert torch.equal(found, wanted)


@torch.inference_mode()
def test_a_step_that_asks_a_tensor_for_its_value_is_not_recorded() -> None:
    graphs = NativeGraphs(executor.executor())
    x = torch.ones(2)
    with pytest.raises(Unsupported, match="recorded"):
        graphs.capture((2,), lambda: x * 2 if x.sum().item() > 0 else x)
    assert executor.executor().recorder is None


def test_recording_a_step_does_not_import_torchs_compiler() -> None:
    """Importing it is most of a second."""
    code = """
import sys, torch
from inferplane_cpu.native import executor
from inferplane_cpu.native.graphs import NativeGraphs
executor.configure(1)
with torch.inference_mode():
    NativeGraphs(executor.executor()).capture((1,), lambda: torch.empty(3).fill_(1))()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
