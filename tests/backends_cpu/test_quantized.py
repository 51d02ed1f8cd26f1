"""Products with packed ggml blocks against float64 products with what the `gguf` package makes of the same blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from inferplane_api.errors import Unsupported
from inferplane_api.quant import QuantScheme, Weight
from inferplane_cpu import descriptor
from inferplane_cpu.native import executor
from inferplane_cpu.native.graphs import NativeGraphs
from inferplane_cpu.native.quant_linear import NativeQuantLinear, PackedBlocks

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HALVES = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Where a block has float16 scales: random bytes there would be infinities."""


pytestmark = pytest.mark.usefixtures("isa")


def blocks_of(scheme: str, n: int, k: int, seed: int) -> np.ndarray:
    """[n, bytes_per_row]: quantized by ggml's own rules, or random bits with scales near 1 / 256."""
    name = scheme.removeprefix("ggml.")
    kind = GGMLQuantizationType[name.upper()]
    random = np.random.default_rng(seed)
    if name not in HALVES:
        return gguf.quants.quantize(random.standard_normal((n, k), dtype=np.float32), kind)
    size, num_bytes = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (n, k // size, num_bytes), dtype=np.uint8)
    for at in HALVES[name]:
        scales = random.uniform(-1, 1, blocks.shape[:2]).astype(np.float16) / np.float16(256)
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(n, -1)


def weight_of(scheme: str, blocks: np.ndarray, k: int) -> Weight:
    def unpack(dtype: torch.dtype) -> torch.Tensor:
        return values_of(scheme, blocks).to(dtype)

    return Weight(QuantScheme(name=scheme, bits=8), (len(blocks), k), torch.from_numpy(blocks), unpack)


def values_of(scheme: str, blocks: np.ndarray) -> torch.Tensor:
    kind = GGMLQuantizationType[scheme.removeprefix("ggml.").upper()]
    return torch.from_numpy(gguf.quants.dequantize(blocks, kind)).double()


def packed(scheme: str, parts: list[np.ndarray], k: int, dtype: torch.dtype) -> tuple[NativeQuantLinear, PackedBlocks]:
    kernel = NativeQuantLinear(torch.device("cpu"), dtype)
    return kernel, kernel.pack([weight_of(scheme, part, k) for part in parts])


def error_of_weights(scheme: str) -> float:
    """Relative, of the products of nested scales, which become float16."""
    return 2**-11 if scheme.removeprefix("ggml.") in HALVES else 0.0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scheme", descriptor.NATIVE_QUANT.schemes)
@pytest.mark.parametrize(
    ("n", "groups", "rows"),
    [
        (1, 1, 3),
        (33, 3, 1),
        (100, 8, 1),
        (100, 2, 2),
        (192, 8, 3),
        (33, 3, 4),
        (100, 2, 17),
        (27, 8, 70),
        (192, 3, 300),
    ],
)
def test_products(scheme: str, dtype: str, n: int, groups: int, rows: int) -> None:
    """Within what rounding activations to 8 bits may cost, weight by weight: odd sizes, stacked parts, rows apart."""
    kind, k = TYPES[dtype], groups * (256 if scheme.removeprefix("ggml.") in HALVES else 32)
    parts = [blocks_of(scheme, n, k, 1), blocks_of(scheme, 5, k, 2)]
    kernel, matrix = packed(scheme, parts, k, kind)
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, k + 3, generator=generator).to(kind)[:, :k]
    x[-1, : k // 2] = 0  # a group of zeros has no scale
    bias = torch.randn(n + 5, generator=generator).to(kind)
    values = torch.cat([values_of(scheme, part) for part in parts])
    exact = x.double() @ values.t()
    largest = x.double().abs().view(rows, -1, 32).amax(2)
    magnitudes = values.abs().view(len(values), -1, 32).sum(2)
    limit = largest @ magnitudes.t() / 254 + x.double().abs() @ values.abs().t() * (error_of_weights(scheme) + 2**-18)
    squares = values.square().view(len(values), -1, 32).sum(2)
    spread = ((largest / 127).square() / 12 @ squares.t()).sqrt()
    for given in (None, bias):
        expected = exact if given is None else exact + given.double()
        unrounded = kernel.apply_float32(x, matrix, given)
        found = kernel.apply(x, matrix, given)
        assert torch.equal(unrounded.to(kind), found)
        found = found.double()
        allowed = limit + (expected.abs() + limit) * (2**-8 if kind == torch.bfloat16 else 2**-18) + 1e-6
        assert ((found - expected).abs() <= allowed).all()
        # Errors of single activations are independent, and must not add up in one direction
        rounding = expected.norm() * (2**-8 if kind == torch.bfloat16 else 2**-11)
        assert (found - expected).norm() <= 4 * spread.norm() + rounding
    assert kernel.apply(x[:0], matrix, None).shape == (0, n + 5)
    assert torch.equal(kernel.apply(x.reshape(1, rows, k), matrix, bias)[0], kernel.apply(x, matrix, bias))


@pytest.mark.parametrize("scheme", descriptor.NATIVE_QUANT.schemes)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_activations_that_are_integers_are_not_rounded(scheme: str, rows: int) -> None:
    """Then nothing is lost but float32's own rounding: every weight, scale and minimum is where it belongs."""
    k = 512
    part = blocks_of(scheme, 70, k, 3)
    kernel, matrix = packed(scheme, [part], k, torch.float32)
    x = torch.randint(-127, 128, (rows, k), generator=torch.Generator().manual_seed(4)).float()
    x[:, ::32] = 127
    values = values_of(scheme, part)
    limit = x.double().abs() @ values.abs().t() * (error_of_weights(scheme) + 2**-20)
    assert ((kernel.apply(x, matrix, None).double() - x.double() @ values.t()).abs() <= limit).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scheme", descriptor.NATIVE_QUANT.schemes)
def test_rows_are_looked_up(scheme: str, dtype: str) -> None:
    part, k = blocks_of(scheme, 77, 512, 5), 512
    kernel, matrix = packed(scheme, [part], k, TYPES[dtype])
    ids = torch.tensor([0, 76, 31, 32, 33, 5, 5])
    found = kernel.lookup(ids, matrix).double()
    expected = values_of(scheme, part)[ids]
    # A weight is the difference of a product and a minimum, each as large as the largest weights of its group
    around = expected.abs().view(len(ids), -1, 32).amax(2).repeat_interleave(32, 1)
    relative = 2**-8 if dtype == "bfloat16" else 2**-22
    assert ((found - expected).abs() <= expected.abs() * relative + 2 * around * error_of_weights(scheme) + 1e-30).all()


def test_what_is_not_finite_reaches_its_row_and_no_other() -> None:
    part = blocks_of("ggml.q4_0", 40, 64, 6)
    kernel, matrix = packed("ggml.q4_0", [part], 64, torch.float32)
    x = torch.ones(3, 64)
    x[0, 3], x[1, 40] = float("nan"), float("inf")
    found = kernel.apply(x, matrix, None)
    assert found[:2].isnan().all()
    assert found[2].isfinite().all()


def test_a_scale_beyond_float16_is_refused() -> None:
    part = blocks_of("ggml.q4_k", 4, 256, 7)
    part[:, :2] = np.array([60000], dtype=np.float16).view(np.uint8)
    with pytest.raises(Unsupported, match="weights=dequantized"):
        packed("ggml.q4_k", [part], 256, torch.float32)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 90])
def test_a_replay_rounds_anew(rows: int) -> None:
    kernel, matrix = packed("ggml.q8_0", [blocks_of("ggml.q8_0", 64, 128, 8)], 128, torch.bfloat16)
    x = torch.randn(rows, 128).bfloat16()
    replay = NativeGraphs(executor.executor()).capture((rows,), lambda: kernel.apply(x, matrix, None))
    x.normal_()
    assert torch.equal(replay(), kernel.apply(x, matrix, None))
