"""The CPU's ops against the reference within the declared tolerances, and its linear kernel against a product."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import pytest
import torch

from inferplane_api.kv import KVLayout, KVView
from inferplane_api.ops import SCHEMAS
from inferplane_api.quant import DENSE, LinearKernel, Weight
from inferplane_api.reference import ops as reference
from inferplane_cpu import descriptor
from inferplane_cpu.linear import CPULinear
from inferplane_cpu.ops import PROVIDER

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPS = {identifier.partition("@")[0]: function for identifier, function in PROVIDER.ops().items()}


def test_the_provider_has_what_the_descriptor_declares() -> None:
    assert set(PROVIDER.ops()) == set(descriptor.OPS.ops)
    assert set(descriptor.OPS.ops) <= {schema.id for schema in SCHEMAS.values()}


def close(found: Any, expected: Any, name: str, dtype: str) -> None:
    relative, absolute = SCHEMAS[name].tolerances[dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=relative, atol=absolute)


def normal(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms(dtype: str, offset: float) -> None:
    x, residual, weight = normal(7, 96, dtype=dtype), 3 * normal(7, 96, dtype=dtype), normal(96, dtype=dtype)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-6, offset)
    close(OPS["rms_norm"](x, weight, 1e-6, offset), expected, "rms_norm", dtype)
    y, total = OPS["add_rms_norm"](x, residual, weight, 1e-6, offset)
    assert torch.equal(total, x + residual)
    assert not torch.equal(total, residual)
    close(y, reference.rms_norm(total.double(), weight.double(), 1e-6, offset), "add_rms_norm", dtype)
    assert y.dtype == total.dtype == DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: str) -> None:
    x = 4 * normal(5, 64, dtype=dtype)
    close(OPS["silu_mul"](x), reference.silu_mul(x.double()), "silu_mul", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [16, 10])
@pytest.mark.parametrize("source", ["product", "apart", "reversed", "heads_inside"])
def test_rope(dtype: str, interleaved: bool, rotated: int, source: str) -> None:
    """product: q and k are neighbours in memory, as the model makes them; the others must not be taken for that."""
    qkv = normal(6, 4 + 2 + 2, 16, dtype=dtype)
    q, k = qkv[:, :4], qkv[:, 4:6]
    if source == "apart":
        q, k = q.clone(), k.clone()
    elif source == "reversed":
        q, k = qkv[:, 4:], qkv[:, 2:4]
    elif source == "heads_inside":
        q, k = qkv.transpose(0, 1).contiguous().transpose(0, 1)[:, :4], qkv[:, 4:6]
    original = qkv.clone()
    angles = normal(6, rotated // 2) * 9
    found = OPS["rope"](q, k, angles.cos(), angles.sin(), interleaved)
    expected = reference.rope(q.double(), k.double(), angles.cos().double(), angles.sin().double(), interleaved)
    for got, want, given in zip(found, expected, (q, k), strict=True):
        assert got.shape == given.shape
        assert got.dtype == given.dtype
        close(got, want, "rope", dtype)
    assert torch.equal(qkv, original)


@pytest.mark.parametrize(("order", "gap", "padded"), [*itertools.product(["thd", "htd"], [0, 5], [False, True])])
def test_kv_write(order: Any, gap: int, padded: bool) -> None:
    pages, tokens, heads, size = 5, 4, 2, 8
    inner = (tokens, heads, size) if order == "thd" else (heads, tokens, size)
    plane = tokens * heads * size
    slots = torch.tensor([17, 3, -1 if padded else 8, 4])
    k, v = normal(4, heads, size), normal(4, heads, size + 1)[..., :size]

    def views() -> KVView:
        pool = torch.zeros(pages, 2 * plane + gap)
        strides = (pool.stride(0), inner[1] * inner[2], inner[2], 1)
        both = [pool.as_strided((pages, *inner), strides, plane * i) for i in range(2)]
        return KVView(k=both[0], v=both[1], layout=KVLayout(order=order), tokens_per_page=tokens)

    found, expected = views(), views()
    OPS["kv_write"](k, v, found, slots)
    reference.kv_write(k, v, expected, slots)
    assert torch.equal(found.k, expected.k)
    assert torch.equal(found.v, expected.v)
    assert expected.k.any()


@pytest.mark.parametrize("vocab", [1, 3, 4, 5, 97, 1000])
def test_gumbel_noise_is_the_references_bit_for_bit(vocab: int) -> None:
    seeds = torch.tensor([0, -1, 2**62 + 12345, 7])
    positions = torch.tensor([0, 5, 2**33 + 1, 1000])
    whole = torch.arange(vocab).expand(4, vocab)
    assert torch.equal(OPS["gumbel_noise"](seeds, positions, whole), reference.gumbel_noise(seeds, positions, whole))
    few = torch.randint(0, vocab, (4, 6), generator=torch.Generator().manual_seed(vocab))
    assert torch.equal(OPS["gumbel_noise"](seeds, positions, few), reference.gumbel_noise(seeds, positions, few))
    shifted = (torch.arange(vocab) + 1).expand(4, vocab)
    assert torch.equal(
        OPS["gumbel_noise"](seeds, positions, shifted), reference.gumbel_noise(seeds, positions, shifted)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_linear(dtype: str, parts: int, bias: bool, stored: str) -> None:
    kernel = CPULinear(torch.device("cpu"), DTYPES[dtype])
    assert isinstance(kernel, LinearKernel)
    matrices = [normal(10 + i, 32, dtype=stored) for i in range(parts)]
    packed = kernel.pack([Weight(DENSE, (m.shape[0], 32), m, m.to) for m in matrices])
    x, b = normal(5, 32, dtype=dtype), normal(sum(m.shape[0] for m in matrices), dtype=dtype) if bias else None
    found = kernel.apply(x, packed, b)
    expected = x.double() @ torch.cat(matrices).to(DTYPES[dtype]).double().T + (b.double() if b is not None else 0)
    limit = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    assert found.dtype == DTYPES[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=limit, atol=10 * limit)


def test_a_single_weight_is_not_copied() -> None:
    matrix = normal(8, 4)
    packed = CPULinear(torch.device("cpu"), torch.float32).pack([Weight(DENSE, (8, 4), matrix, matrix.to)])
    assert packed.data_ptr() == matrix.data_ptr()


def test_what_the_descriptors_name_can_be_loaded() -> None:
    for spec in (descriptor.PLATFORM, descriptor.ATTENTION, descriptor.OPS, descriptor.LINEAR):
        module, _, attribute = spec.load.partition(":")
        assert hasattr(import_module(module), attribute)
