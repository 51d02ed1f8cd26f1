"""Every ggml type that the `gguf` package can dequantize, from a written file, against that package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from inferplane_quantization.dequantize import can_dequantize, dequantize
from inferplane_quantization.gguf_format import GGUFFormat

ROWS, COLUMNS = 5, 512


def known_types() -> list[GGMLQuantizationType]:
    """Asked of the reference itself."""
    found = []
    for kind in GGMLQuantizationType:
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if block_size == 1 and kind != GGMLQuantizationType.BF16:
            continue
        try:
            gguf.quants.dequantize(np.zeros((1, 512 // block_size * block_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        found.append(kind)
    return found


TYPES = known_types()
# Where the float16 scales of a block stand: random bytes there would give infinities and NaNs.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ2_XXS": (0,), "IQ2_XS": (0,),
    "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def random_blocks(kind: GGMLQuantizationType) -> np.ndarray:
    """[ROWS, bytes_per_row] of random weights of a type, with scales near 1."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind)
    if kind == GGMLQuantizationType.BF16:
        return gguf.quants.quantize(random.standard_normal((ROWS, COLUMNS), dtype=np.float32), kind)
    blocks = random.integers(0, 256, (ROWS, COLUMNS // block_size, block_bytes), dtype=np.uint8)
    for at in SCALES.get(kind.name, ()):
        scale = random.uniform(-2, 2, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scale[:, :, None].view(np.uint8)
    if kind == GGMLQuantizationType.MXFP4:
        blocks[:, :, 0] = random.integers(120, 136, blocks.shape[:2])  # an exponent
    return blocks.reshape(ROWS, -1)


def test_the_list_of_types_is_that_of_the_package() -> None:
    names = {kind.name for kind in TYPES}
    assert len(names) >= 22
    assert {"Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ2_XXS", "IQ4_XS", "TQ1_0", "MXFP4", "BF16"} <= names
    assert all(can_dequantize(kind) for kind in TYPES)
    assert not can_dequantize(GGMLQuantizationType.I32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A "qwen3" file whose layer i has a matrix of type i."""
    path = tmp_path_factory.mktemp("types") / "types.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_head_count(1)
    for layer, kind in enumerate(TYPES):
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", random_blocks(kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_equals_the_reference(kind: GGMLQuantizationType, file: Path) -> None:
    checkpoint = GGUFFormat().open(file)
    name = f"model.layers.{TYPES.index(kind)}.mlp.down_proj.weight"
    weight = checkpoint.weight(name)
    packed = gguf.GGUFReader(file).tensors[TYPES.index(kind)].data
    expected = gguf.quants.dequantize(packed, kind)
    assert weight.shape == (ROWS, COLUMNS)
    assert weight.dequantize(torch.float32).dtype == torch.float32
    np.testing.assert_array_equal(weight.dequantize(torch.float32).numpy(), expected)
    np.testing.assert_array_equal(checkpoint.tensor(name).float().numpy(), expected)
    rounded = torch.from_numpy(expected).to(torch.bfloat16)
    torch.testing.assert_close(weight.dequantize(torch.bfloat16), rounded, rtol=0, atol=0, equal_nan=True)
    if kind == GGMLQuantizationType.BF16:
        assert weight.scheme.name == "dense"
        assert weight.data.dtype == torch.bfloat16
    else:
        assert weight.scheme.name == f"ggml.{kind.name.lower()}"
        np.testing.assert_array_equal(weight.data.numpy(), packed)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_many_rows_equal_few(kind: str) -> None:
    """More than one chunk at a time."""
    packed = np.tile(random_blocks(GGMLQuantizationType[kind]), (120, 1))
    ours = dequantize(torch.from_numpy(packed), GGMLQuantizationType[kind], torch.float32)
    np.testing.assert_array_equal(ours.numpy(), gguf.quants.dequantize(packed, GGMLQuantizationType[kind]))


@pytest.mark.parametrize(
    ("name", "bits", "group", "symmetric"),
    [
        ("Q4_0", 4, 32, True),
        ("Q4_1", 4, 32, False),
        ("Q8_0", 8, 32, True),
        ("Q4_K", 4, 256, False),
        ("Q6_K", 6, 256, True),
    ],
)
def test_schemes_say_what_the_numbers_mean(name: str, bits: int, group: int, symmetric: bool, file: Path) -> None:
    layer = TYPES.index(GGMLQuantizationType[name])
    scheme = GGUFFormat().open(file).weight(f"model.layers.{layer}.mlp.down_proj.weight").scheme
    assert (scheme.bits, scheme.group_size, scheme.symmetric) == (bits, group, symmetric)
