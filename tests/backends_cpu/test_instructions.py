"""Products in 16 bit with and without instructions for them, and tall products, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inferplane_api.quant import DENSE, Weight
from inferplane_cpu import linear
from inferplane_cpu.instructions import multiplies_natively, processor_flags
from inferplane_cpu.linear import TALL, CPULinear


def weight_of(data: torch.Tensor) -> Weight:
    return Weight(DENSE, (data.shape[0], data.shape[1]), data, data.to)


@pytest.mark.parametrize("flags", [frozenset(), frozenset({"avx512_bf16", "avx512_fp16"})])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_operands_with_sums_in_float32(
    monkeypatch: pytest.MonkeyPatch, flags: frozenset[str], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(linear, "processor_flags", lambda: flags)
    generator = torch.Generator().manual_seed(3)
    x, w, b = (torch.randn(shape, generator=generator).to(dtype) for shape in ((5, 96), (40, 96), (40,)))
    kernel = CPULinear(torch.device("cpu"), dtype)
    packed = kernel.pack([weight_of(w[:16]), weight_of(w[16:])])
    assert packed.dtype == (dtype if flags else torch.float32)
    result = kernel.apply(x, packed, b)
    assert result.dtype == dtype
    truth = x.double() @ w.double().T + b.double()
    torch.testing.assert_close(result.double(), truth, rtol=2 * torch.finfo(dtype).eps, atol=0.02)


def test_weights_are_rounded_to_the_type_even_where_products_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "processor_flags", frozenset)
    data = torch.full((1, 1), 1.00001)
    packed = CPULinear(torch.device("cpu"), torch.bfloat16).pack([weight_of(data)])
    assert packed.item() == 1.0


@pytest.mark.parametrize("rows", [1, 2, 7, 64, 65])
def test_tall_products(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn((rows, 24), generator=generator)
    w = torch.randn((TALL + 3, 24), generator=generator)
    b = torch.randn(TALL + 3, generator=generator)
    kernel = CPULinear(torch.device("cpu"), torch.float32)
    packed = kernel.pack([weight_of(w)])
    for bias in (None, b):
        result = kernel.apply(x, packed, bias)
        truth = x.double() @ w.double().T + (0 if bias is None else bias.double())
        assert result.is_contiguous()
        torch.testing.assert_close(result.double(), truth, rtol=1e-5, atol=1e-5)


def test_flags_of_x86_and_arm(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nflags\t: fpu\n")
    assert processor_flags(path) == {"fpu", "avx2", "avx512_bf16"}
    path.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert multiplies_natively("bfloat16", processor_flags(path))
    assert not multiplies_natively("float16", processor_flags(path))
    assert multiplies_natively("float32", frozenset())
    assert processor_flags(tmp_path / "none") == frozenset()
