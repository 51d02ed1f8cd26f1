"""The tensors of a GGUF file under their Hugging Face names; knows no model and no device."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from inferplane_api.errors import InferplaneError
from inferplane_api.quant import DENSE, QuantScheme, Weight
from inferplane_quantization.dequantize import can_dequantize, dequantize
from inferplane_quantization.gguf_file import read_header
from inferplane_quantization.gguf_names import Source, tensor_sources

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from inferplane_quantization.gguf_file import GGUFHeader, TensorInfo

_Type = GGMLQuantizationType
_PLAIN = {
    _Type.F32: torch.float32,
    _Type.F16: torch.float16,
    _Type.BF16: torch.bfloat16,
    _Type.F64: torch.float64,
}
_WITH_MINIMUM = frozenset((_Type.Q4_1, _Type.Q5_1, _Type.Q2_K, _Type.Q4_K, _Type.Q5_K, _Type.IQ1_S, _Type.IQ1_M))
"""Types whose weights have an offset of their own beside the scale."""


class GGUFCheckpoint:
    """An opened file, or the parts of a split one."""

    def __init__(self, files: list[Path]) -> None:
        headers = [read_header(file, lambda key: not key.startswith("tokenizer.")) for file in files]
        self._files: dict[str, tuple[TensorInfo, torch.Tensor]] = {}
        self._mappings: list[mmap.mmap] = []
        for header in headers:
            self._mappings.append(_map(header))
            mapped = torch.frombuffer(self._mappings[-1], dtype=torch.uint8)
            self._files.update({name: (info, mapped) for name, info in header.tensors.items()})
        tensors = {name: info for name, (info, _) in self._files.items()}
        self._sources = tensor_sources(headers[0]._replace(tensors=tensors))

    def names(self) -> Iterable[str]:
        """All tensor names, as the Hugging Face implementation calls them."""
        return self._sources.keys()

    def tensor(self, name: str) -> torch.Tensor:
        """A plain tensor in the type that the file has it in; quantized ones as float32. Raises KeyError."""
        source = self._sources[name]
        info, kind, data = self._read(source)
        if kind not in _PLAIN:
            return dequantize(data, kind, torch.float32).view(info.shape)
        values = data.view(_PLAIN[kind]).view(info.shape)
        # The converter added 1 in float32, or in the file's type: take it off in float32.
        return values.float() - 1.0 if source.undo == "plus_one" else values

    def weight(self, name: str) -> Weight:
        """A matrix in its own scheme: "dense", or "ggml.<type>" with the packed rows. Raises KeyError."""
        source = self._sources[name]
        info, kind, data = self._read(source)
        if len(info.shape) != 2:
            raise InferplaneError(f"{name} has shape {info.shape}: not a matrix", code="gguf.shape")
        shape = (info.shape[0], info.shape[1])
        if kind in _PLAIN:
            dense = data.view(_PLAIN[kind])
            return Weight(DENSE, shape, dense, dense.to)
        return Weight(_scheme(kind), shape, data, lambda dtype: dequantize(data, kind, dtype))

    def close(self) -> None:
        """Let go of the mapped files; tensors that are still used keep them mapped, without their pages in memory."""
        self._files.clear()
        for mapping in self._mappings:
            if hasattr(mmap, "MADV_DONTNEED"):
                mapping.madvise(mmap.MADV_DONTNEED)
        self._mappings.clear()

    def _read(self, source: Source) -> tuple[TensorInfo, GGMLQuantizationType, torch.Tensor]:
        """The tensor's bytes, [rows, bytes_per_row] uint8, in Hugging Face's row order."""
        info, mapped = self._files[source.name]
        kind = _known_type(info)
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        columns = info.shape[-1]
        if columns % block_size:
            raise InferplaneError(
                f"{info.name}: {columns} columns are not whole blocks of {block_size}", code="gguf.shape"
            )
        row_bytes = columns // block_size * block_bytes
        num_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        end = info.offset + num_rows * row_bytes
        if end > mapped.numel():
            raise InferplaneError(
                f"the file ends before tensor {info.name!r} does",
                code="gguf.malformed",
                remedy="fetch the file again; it is cut short",
            )
        data = mapped[info.offset : end].view(num_rows, row_bytes)
        return info, kind, _unpermute(data, source, info) if source.undo == "permutation" else data


def _map(header: GGUFHeader) -> mmap.mmap:
    """The whole file. Mapped privately, since torch has no read-only tensors."""
    with header.path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _known_type(info: TensorInfo) -> GGMLQuantizationType:
    try:
        kind = GGMLQuantizationType(info.ggml_type)
    except ValueError:
        kind = None
    if kind is None or not (kind in _PLAIN or can_dequantize(kind)):
        raise InferplaneError(
            f"tensor {info.name!r} is of ggml type {kind.name if kind else info.ggml_type}, which cannot be read",
            code="gguf.type",
            remedy="a newer `gguf` package may know it: pip install -U gguf",
        )
    return kind


def _unpermute(data: torch.Tensor, source: Source, info: TensorInfo) -> torch.Tensor:
    """Whole rows (or the elements of a bias) move, so packed blocks stay as they are."""
    if len(info.shape) == 1:
        width = data.shape[1] // info.shape[0]
        return _reorder(data.view(info.shape[0], width), source.num_heads).view(1, -1)
    return _reorder(data, source.num_heads)


def _reorder(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    pairs = torch.arange(rows.shape[0]).view(num_heads, -1, 2)
    return rows[pairs.transpose(1, 2).reshape(-1)]


def _scheme(kind: GGMLQuantizationType) -> QuantScheme:
    block_size, _ = GGML_QUANT_SIZES[kind]
    return QuantScheme(
        name=f"ggml.{kind.name.lower()}",
        bits=int(next(c for c in kind.name if c.isdigit())),
        group_size=block_size,
        symmetric=kind not in _WITH_MINIMUM,
    )
