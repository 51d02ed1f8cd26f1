"""A made-up vendor's distribution on the import path, true to its word or with one lie, and the kit run over it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from inferplane_api.testing.case import Case, Lie, NotTested, prove
from inferplane_api.testing.declarations import declare
from inferplane_api.testing.generate import generate
from inferplane_api.testing.kit import Kit

SOURCE = Path(__file__).parent / "acme"

ENTRY_POINTS = """\
[inferplane.platforms]
acme = acme_chip.descriptor:PLATFORM

[inferplane.attention]
acme.loop = acme_chip.descriptor:ATTENTION

[inferplane.kernels]
acme.ops = acme_chip.descriptor:OPS
acme.linear = acme_chip.descriptor:LINEAR
"""


class Outcomes(NamedTuple):
    """What the kit says, by case id."""

    passed: list[str]
    failed: dict[str, str]
    skipped: dict[str, str]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path; what was imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_chip"]:
        del sys.modules[name]


@pytest.fixture
def install_acme(site: Path) -> Callable[..., None]:
    """install(changes={file: [(old, new), ...]}): write the distribution with some lines changed."""

    def install(
        changes: dict[str, list[tuple[str, str]]] | None = None,
        entry_points: str = ENTRY_POINTS,
        requires: str = "inferplane-api>=0.1,<0.2",
    ) -> None:
        package = site / "acme_chip"
        package.mkdir()
        (package / "__init__.py").write_text("")
        for file in SOURCE.glob("*.py"):
            text = file.read_text(encoding="utf-8")
            for old, new in (changes or {}).get(file.stem, []):
                assert text.count(old) == 1, f"{file.name} holds {old!r} {text.count(old)} times"
                text = text.replace(old, new)
            (package / file.name).write_text(text, encoding="utf-8")
        info = site / "acme_chip-1.2.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: acme-chip\nVersion: 1.2\nRequires-Dist: {requires}\n"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(entry_points)
        importlib.invalidate_caches()

    return install


@pytest.fixture
def run_kit(tmp_path: Path) -> Callable[..., Outcomes]:
    """run(wanted): the outcomes of the cases of platform "acme" for which wanted(case) is true, in this process."""

    def run(wanted: Callable[[Case], bool], platform: str = "acme", overlay: str | None = None) -> Outcomes:
        declarations = declare(platform, overlay)
        kit = Kit(declarations, "full", tmp_path)
        outcomes = Outcomes([], {}, {})
        for case in generate(declarations):
            if not wanted(case):
                continue
            try:
                prove(case, kit)
            except Lie as lie:
                outcomes.failed[case.id] = str(lie)
            except NotTested as reason:
                outcomes.skipped[case.id] = str(reason)
            else:
                outcomes.passed.append(case.id)
        kit.close()
        return outcomes

    return run
