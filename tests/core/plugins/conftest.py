"""Real distributions, written as pip would lay them out, on the path of this process and of discovery's children."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from inferplane_api.spec import HostInfo


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def write_distribution(site: Path) -> Callable[..., str]:
    """write(name, source, entries={kind: {entry: attribute}}, ...) gives the module's name; source is dedented."""

    def write(
        name: str,
        source: str,
        entries: Mapping[str, Mapping[str, str]],
        *,
        version: str = "1.2",
        requires: Sequence[str] = ("inferplane-api>=0.1,<0.2",),
        folder: Path = site,
    ) -> str:
        module = name.replace("-", "_")
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        info = folder / f"{module}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)]) + "\n")
        points = [
            line
            for kind, values in entries.items()
            for line in (f"[inferplane.{kind}]", *(f"{key} = {module}:{value}" for key, value in values.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(points) + "\n")
        importlib.invalidate_caches()
        return module

    return write


@pytest.fixture
def write_platform(write_distribution: Callable[..., str]) -> Callable[..., str]:
    """write(name, source) for a distribution with one platform; {name} and {module} in source are filled in."""

    def write(name: str, source: str, *, platform: str | None = None, **options: object) -> str:
        platform = platform or name.split("-")[0]
        module = name.replace("-", "_")
        text = source.replace("{name}", platform).replace("{module}", module)
        return write_distribution(name, text, {"platforms": {platform: "PLATFORM"}}, **options)

    return write


@pytest.fixture
def host() -> HostInfo:
    """A host with nothing on its bus."""
    return HostInfo(os="linux", machine="x86_64", cpu_count=4, memory_bytes=2**34, torch_version="2.13.0+cpu")
