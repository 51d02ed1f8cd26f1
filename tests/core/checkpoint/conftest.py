"""Formats as discovery would find them, and a stand-in for a plugin's package."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from inferplane_api.spec import WeightFormatSpec

if TYPE_CHECKING:
    from collections.abc import Callable


class Found(NamedTuple):
    """A format and where it comes from."""

    spec: WeightFormatSpec
    distribution: str
    version: str


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("INFERPLANE_CACHE", str(folder))
    return folder


@pytest.fixture
def builtin() -> Found:
    """Core's own format, by its real descriptor."""
    from inferplane.builtin.descriptor import SAFETENSORS

    return Found(SAFETENSORS, "inferplane", "0.1.0")


@pytest.fixture
def make_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Found]:
    """`make_plugin(body, **spec)`: a format class `Format` whose `card(self, path, cache)` has this body."""

    def make(body: str, *, name: str = "acme", version: str = "1.0", **spec: Any) -> Found:
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        code = (
            "import os, sys, time\n"
            "from inferplane_api.checkpoint import CheckpointCard\n"
            "from inferplane_api.errors import InferplaneError\n\n\n"
            "class Format:\n"
            "    def card(self, path, cache):\n" + textwrap.indent(textwrap.dedent(body), "        ")
        )
        (folder / f"{name}_format.py").write_text(code)
        monkeypatch.syspath_prepend(str(folder))
        values = {"id": f"{name}.file", "name": name, "file_suffixes": (f".{name}",), **spec}
        return Found(WeightFormatSpec(load=f"{name}_format:Format", **values), f"{name}-inferplane", version)

    return make
