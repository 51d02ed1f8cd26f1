"""The container against the `gguf` package's own reader, and against files that are cut or wrong."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from inferplane_api.errors import InferplaneError
from inferplane_quantization.gguf_file import read_header, split_files

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES: dict[str, Any] = {
    "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
    "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.1, "float64": 0.1, "bool": True, "string": "Größe 你好 \n",
    "array": [1, 2, 3],
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in VALUES.items():
        getattr(writer, f"add_{name}")(f"test.{name}", value)
    writer.add_array("test.strings", ["", "a", "你好" * 50])
    writer.add_array("test.floats", [0.5, -1.0])
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(5, dtype=np.float16))
    writer.add_tensor("three", np.zeros((2, 3, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_equal_the_reference_reader(file: Path) -> None:
    header = read_header(file)
    reference = gguf.GGUFReader(file)
    expected = {name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    expected["test.float32"] = 0.1
    assert header.metadata == expected
    assert list(header.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.ggml_type == tensor.tensor_type
        assert info.offset == tensor.data_offset


def test_values_that_are_not_wanted_are_stepped_over(file: Path) -> None:
    header = read_header(file, lambda key: key == "test.uint8")
    assert header.metadata == {"test.uint8": 255}
    assert header.tensors == read_header(file).tensors


def test_alignment_is_honoured(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    writer.add_tensor("a", np.ones(3, dtype=np.float32))
    writer.add_tensor("b", np.ones(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    offsets = {t.name: t.data_offset for t in gguf.GGUFReader(path).tensors}
    assert {name: info.offset for name, info in read_header(path, lambda key: False).tensors.items()} == offsets
    assert offsets["b"] % 128 == 0


def test_a_file_cut_anywhere_is_an_error_that_names_it(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    end = read_header(file).tensors["one"].offset
    cut = tmp_path / "cut.gguf"
    for size in (*range(1, end - 40, 3), 0):
        cut.write_bytes(whole[:size])
        with pytest.raises(InferplaneError, match=r"cut\.gguf"):
            read_header(cut)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: b"GGML" + data[4:], "does not start with"),
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "version is 1"),
        (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "big-endian"),
        (lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:], "not a whole GGUF"),
        (lambda data: data[:24] + struct.pack("<Q", 2**60) + data[32:], "ends within"),
    ],
)
def test_wrong_bytes_are_named(change: Callable[[bytes], bytes], problem: str, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(change(file.read_bytes()))
    with pytest.raises(InferplaneError, match=problem):
        read_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InferplaneError, match=r"no\.gguf"):
        read_header(tmp_path / "no.gguf")


def test_parts_of_a_split_file(tmp_path: Path) -> None:
    single = tmp_path / "model.gguf"
    assert split_files(single) == [single]
    parts = [tmp_path / f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    for part in parts[:2]:
        part.touch()
    with pytest.raises(InferplaneError, match="m-00003-of-00003"):
        split_files(parts[0])
    parts[2].touch()
    assert split_files(parts[1]) == parts
