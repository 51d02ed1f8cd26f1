"""Whatever a reference or a wheel's member is called, the answer is an error of ours or a path inside the folder."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.sources import hub, pypi
from inferplane.sources.archive import read_contents

PIECES = st.sampled_from(
    ["..", ".", "", "/", "\\", "a", "m.gguf", ".part00", ".part01", "C:", "~", "#", "==", "1", "+", ":", "\0"]
)
NAMES = st.lists(PIECES, max_size=6).map("".join) | st.text(max_size=20)


@given(NAMES)
def test_package_references(text: str) -> None:
    try:
        parsed = pypi.parse_ref("pypi:" + text)
    except InvalidValue:
        return
    assert pypi.parse_ref(str(parsed)) == parsed
    if all(version for _, version in parsed.packages):
        assert Path(parsed.folder).name == parsed.folder


@given(NAMES)
def test_hub_references(text: str) -> None:
    try:
        parsed = hub.parse_ref(text)
    except InvalidValue:
        return
    assert ".." not in parsed.repo
    assert not (parsed.file or "").startswith("/")
    assert ".." not in (parsed.file or "").split("/")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(st.lists(NAMES.filter(bool), min_size=1, max_size=4))
@example(["...part00"])
def test_members_stay_inside(names: list[str]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo("placeholder")
            # The writer would clean the name up; a hostile archive has not been through it.
            info.filename = name
            archive.writestr(info, b"x")
    folder = Path("/folder")
    files: dict[str, object] = {}
    with zipfile.ZipFile(buffer) as archive, contextlib.suppress(InferplaneError):
        files = dict(read_contents([archive]).files)
    for path in files:
        target = Path(*folder.parts, path)
        assert target.is_relative_to(folder)
        assert ".." not in target.parts
        assert target != folder
