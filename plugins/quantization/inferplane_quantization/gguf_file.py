"""The container: metadata and tensor table of a GGUF file; knows no architecture and no quantization.

Layout as in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the `gguf` package makes an array
per string (19 s for a vocabulary of 262,144); this one walks the bytes once.
"""

from __future__ import annotations

import mmap
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane_api.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type to struct code."""
_STRING = 8
_ARRAY = 9


class TensorInfo(NamedTuple):
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as numpy and torch have it (the file stores the reverse)."""
    ggml_type: int
    """A `gguf.GGMLQuantizationType` value."""
    offset: int
    """Of the first byte, from the start of the file."""


class GGUFHeader(NamedTuple):
    """Everything of one file but the tensors' bytes."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def split_files(path: Path) -> list[Path]:
    """The files of a checkpoint, first part first: the file itself, or all parts NAME-00001-of-0000N.gguf.

    Raises InferplaneError naming the parts that are not there.
    """
    match = _SPLIT_NAME.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    files = [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise InferplaneError(
            f"{path} is one part of {count}; not beside it: {', '.join(missing)}",
            code="gguf.split_incomplete",
            remedy="put all parts into one folder",
        )
    return files


def read_header(path: Path, wanted: Callable[[str], bool] = lambda key: True) -> GGUFHeader:
    """Read metadata and tensor table. Values whose key is not `wanted` are stepped over.

    Raises InferplaneError naming the file and what is wrong with it.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walker(path, data).header(wanted)
    except OSError as error:
        raise InferplaneError(f"cannot read {path}: {error}", code="gguf.unreadable") from error
    except (struct.error, ValueError, KeyError, IndexError, OverflowError) as error:
        raise InferplaneError(
            f"{path} is not a whole GGUF file: {error}",
            code="gguf.malformed",
            remedy="fetch the file again; it may be cut short",
        ) from error


def _shortest(value: float) -> float:
    """The shortest decimal that names this float32: 1e-05, where the bits as a double are 9.999999747378752e-06."""
    candidates = (float(f"{value:.{digits}g}") for digits in range(6, 9))
    return next((c for c in candidates if struct.pack("<f", c) == struct.pack("<f", value)), value)


class _Walker:
    """Reads values one after the other."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 0

    def header(self, wanted: Callable[[str], bool]) -> GGUFHeader:
        self._check_magic()
        num_tensors, num_values = self._unpack("Q"), self._unpack("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            kind = self._unpack("I")
            # The alignment locates the tensors, whoever reads.
            if wanted(key) or key == "general.alignment":
                metadata[key] = self._value(kind)
            else:
                self._skip(kind)
        table = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r}, not a power of two")
        start = -(-self._at // alignment) * alignment
        tensors = {t.name: t._replace(offset=start + t.offset) for t in table}
        if len(tensors) != len(table):
            raise ValueError("two tensors have the same name")
        return GGUFHeader(self._path, metadata, tensors)

    def _check_magic(self) -> None:
        if bytes(self._data[:4]) != _MAGIC:
            raise ValueError("it does not start with the letters GGUF")
        self._at = 4
        version = self._unpack("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            problem = "it is big-endian" if swapped in _VERSIONS else f"its version is {version}"
            raise ValueError(f"{problem}; little-endian versions 2 and 3 are read")

    def _unpack(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return _shortest(value) if code == "f" else value

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"it ends within a value at byte {start}")
        return self._data[start : self._at]

    def _string(self) -> str:
        return self._take(self._unpack("Q")).decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._unpack(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, length = self._unpack("I"), self._unpack("Q")
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            return [self._array() for _ in range(length)]
        code = f"<{length}{_SCALARS[kind]}"
        return list(struct.unpack(code, self._take(struct.calcsize(code))))

    def _strings(self, length: int) -> list[str]:
        data, at, end = self._data, self._at, len(self._data)
        from_bytes = int.from_bytes
        strings = []
        for _ in range(length):
            start = at + 8
            at = start + from_bytes(data[at:start], "little")
            if at > end:
                raise ValueError(f"it ends within a string at byte {start}")
            strings.append(data[start:at].decode("utf-8", errors="replace"))
        self._at = at
        return strings

    def _skip(self, kind: int) -> None:
        if kind != _ARRAY:
            self._value(kind)
            return
        kind, length = self._unpack("I"), self._unpack("Q")
        if kind in _SCALARS:
            self._take(length * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            data, at, end = self._data, self._at, len(self._data)
            from_bytes = int.from_bytes
            for _ in range(length):
                at += 8 + from_bytes(data[at : at + 8], "little")
                if at > end:
                    raise ValueError("it ends within an array of strings")
            self._at = at
        else:
            for _ in range(length):
                self._skip(kind)

    def _tensor(self) -> TensorInfo:
        name = self._string()
        num_dimensions = self._unpack("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(self._unpack("Q") for _ in range(num_dimensions))
        return TensorInfo(name, shape[::-1], self._unpack("I"), self._unpack("Q"))
