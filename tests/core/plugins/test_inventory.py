"""The list from metadata, against the metadata that was written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferplane.plugins.inventory import admits, installed, list_copies, list_entry_points, list_leftovers

Write = Callable[..., str]

RAISING = "raise RuntimeError('imported')"


def test_entries_are_listed_without_an_import(write_distribution: Write) -> None:
    module = write_distribution(
        "Acme.NPU",
        RAISING,
        {"platforms": {"acme": "PLATFORM"}, "attention": {"acme.fast": "FAST"}},
        version="3.1",
        requires=("inferplane-api>=0.1,<0.2", "torch>=2.9", "inferplane-api>=5; extra == 'next'", "numpy"),
    )
    entries = [entry for entry in list_entry_points() if entry.distribution == "acme-npu"]
    assert [(entry.group, entry.name) for entry in entries] == [
        ("inferplane.attention", "acme.fast"),
        ("inferplane.platforms", "acme"),
    ]
    assert entries[0].kind == "attention"
    assert entries[0].value == f"{module}:FAST"
    assert {entry.version for entry in entries} == {"3.1"}
    assert {entry.api_range for entry in entries} == {">=0.1,<0.2"}
    assert {entry.torch_range for entry in entries} == {">=2.9"}
    assert module not in sys.modules


def test_core_lists_itself_by_the_same_door() -> None:
    names = {(entry.group, entry.name) for entry in list_entry_points() if entry.distribution == "inferplane"}
    assert ("inferplane.platforms", "reference") in names


def test_a_requirement_without_a_range_is_not_an_undeclared_one(write_distribution: Write) -> None:
    write_distribution("acme-any", RAISING, {"models": {"any": "A"}}, requires=("inferplane-api",))
    write_distribution("acme-none", RAISING, {"models": {"none": "A"}}, requires=())
    ranges = {entry.distribution: entry.api_range for entry in list_entry_points()}
    assert (ranges["acme-any"], ranges["acme-none"]) == ("", None)


def test_the_first_copy_on_the_path_wins_and_the_others_are_told(
    write_distribution: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_distribution("acme-npu", RAISING, {"platforms": {"acme": "OLD"}}, version="1.0")
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    write_distribution("acme-npu", RAISING, {"platforms": {"acme": "NEW"}}, version="2.0", folder=earlier)
    monkeypatch.syspath_prepend(str(earlier))
    entries = [entry for entry in list_entry_points() if entry.distribution == "acme-npu"]
    assert [(entry.version, entry.value) for entry in entries] == [("2.0", "acme_npu:NEW")]
    (copies,) = list_copies(["acme-npu", "inferplane-api"])
    assert copies.used == f"2.0 in {earlier}"
    assert copies.hidden == (f"1.0 in {tmp_path / 'site'}",)


def test_a_folder_that_is_on_the_path_twice_is_one_copy(
    write_distribution: Write, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_distribution("acme-npu", RAISING, {"platforms": {"acme": "P"}})
    monkeypatch.syspath_prepend(str(site))
    assert sys.path.count(str(site)) == 2
    assert list_copies(["acme-npu"]) == []


@pytest.mark.parametrize(
    ("specifier", "version", "fits"),
    [
        (None, None, True),
        (None, "1.0", True),
        ("", None, False),
        ("", "1.0", True),
        (">=2.9", "2.13.0+cpu", True),
        (">=2.9", "2.9.0rc1", False),
        (">=2.9", "2.10.0.dev20260101", True),
        ("<0.2,>=0.1", "0.2.0", False),
    ],
)
def test_ranges(specifier: str | None, version: str | None, fits: bool) -> None:
    assert admits(specifier, version) is fits


def test_installed() -> None:
    assert installed("msgspec")
    assert not installed("no-such-distribution")


def test_the_command_imports_no_plugin(write_distribution: Write, site: Path) -> None:
    """A descriptor that raises is no hindrance; neither torch nor a plugin's module is imported."""
    write_distribution("acme-npu", RAISING, {"platforms": {"acme": "PLATFORM"}}, requires=("inferplane-api>=7",))
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from inferplane.cli.main import main\n"
        "status = main(['plugins'])\n"
        "print('imported', [name for name in ('torch', 'acme_npu') if name in sys.modules])\n"
        "raise SystemExit(status)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = (line for line in result.stdout.splitlines() if "acme-npu" in line)
    assert line.split()[:5] == ["platforms", "acme", "acme-npu", "1.2", ">=7"]
    assert "incompatible: wants inferplane-api >=7, has 0.1.0" in line
    assert "imported []" in result.stdout


def test_what_an_interrupted_removal_left_is_found(site: Path) -> None:
    (site / "~cme_npu-1.2.dist-info").mkdir()
    (site / "~notes").mkdir()
    assert [place for place in list_leftovers() if str(site) in place] == [f"~cme_npu-1.2.dist-info in {site}"]
