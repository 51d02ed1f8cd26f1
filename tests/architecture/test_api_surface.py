"""The contract is what platform_api/api_surface.json says; a change needs a version and a line in the changelog."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

CHANGELOG = """# Changelog
## Unreleased
### API
- {unreleased}
### Added
- Everything.
## 0.3.0
### API
- 0.3.0 has records.
"""

SOURCE = """
from typing import Literal, NamedTuple, Protocol
Kind = Literal["a", "b"]
class Spec(msgspec.Struct, frozen=True):
    name: str
    sizes: tuple[int, ...] = ()
class Batch(NamedTuple):
    x: int
    y: int = 0
class Device(Protocol):
    def run(self, x: int) -> None: ...
def check(spec: Spec, *, strict: bool = False) -> bool: ...
def _private(): ...
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_surface", REPOSITORY / "tools" / "api_surface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_surface_is_the_recorded_one(tool: ModuleType) -> None:
    changelog = tool.CHANGELOG.read_text(encoding="utf-8")
    problem = tool.problem(tool.read_file(), tool.read_surface(), tool.API_VERSION, changelog)
    assert not problem, problem


def test_the_distribution_has_the_version_of_the_contract(tool: ModuleType) -> None:
    manifest = tomllib.loads((REPOSITORY / "platform_api" / "pyproject.toml").read_text(encoding="utf-8"))
    assert manifest["project"]["version"] == tool.API_VERSION


def test_the_surface_holds_every_kind_of_name(tool: ModuleType) -> None:
    surface = tool.read_surface()
    assert surface["group inferplane.platforms"] == "PlatformSpec"
    assert surface["op rms_norm@1"].startswith("(x[..., D], weight[D], eps, offset=0.0) -> [..., D]; tolerances ")
    assert surface["inferplane_api.spec.PlatformSpec.tier"] == "field int"
    assert surface["inferplane_api.spec.PlatformSpec.evidence"] == "field Evidence = Evidence()"
    assert surface["inferplane_api.platform.Platform.graphs"] == "method (self) -> GraphCapture | None"
    assert surface["inferplane_api.hooks.inferplane_doctor"].startswith("hook (host: HostInfo)")
    assert surface["inferplane_api.reference.ops.silu_mul"].startswith("(x: torch.Tensor)")
    assert not [name for name in surface if "._" in name.replace("__init__", "")]


@pytest.mark.parametrize(
    ("old", "new", "level", "name"),
    [
        ("    sizes:", "    extra: int = 0\n    sizes:", "addition", "m.Spec.extra"),
        ("    name: str", "    name: str\n    extra: int", "breaking", "m.Spec.extra"),
        ("    name: str\n", "", "breaking", "m.Spec.name"),
        ("tuple[int, ...] = ()", "tuple[int, ...] = (1,)", "breaking", "m.Spec.sizes"),
        ("    y: int = 0", "    y: int = 0\n    z: int = 0", "addition", "m.Batch.z"),
        ("    x: int\n    y: int = 0", "    y: int = 0\n    x: int = 0", "breaking", "m.Batch.x"),
        ('["a", "b"]', '["a", "b", "c"]', "addition", "m.Kind"),
        ('["a", "b"]', '["a"]', "breaking", "m.Kind"),
        ("def run(self, x: int)", "def run(self, x: int, y: int = 0)", "breaking", "m.Device.run"),
        ("def check", "def other() -> None: ...\ndef check", "addition", "m.other"),
        ("strict: bool = False", "strict: bool = False, loud: bool = True", "addition", "m.check"),
        ("strict: bool = False", "strict: bool", "breaking", "m.check"),
        ("spec: Spec, *", "first: int, spec: Spec, *", "breaking", "m.check"),
        ("-> bool", "-> int", "breaking", "m.check"),
        ("def run(", "def halt(self) -> None: ...\n    def run(", "breaking", "m.Device.halt"),
        ("class Device", "class Other(Protocol):\n    def run(self) -> None: ...\nclass Device", "addition", "m.Other"),
    ],
)
def test_additions_are_told_from_breaks(tool: ModuleType, old: str, new: str, level: str, name: str) -> None:
    assert SOURCE.count(old) == 1
    before = tool.describe_module("m", SOURCE)
    after = tool.describe_module("m", SOURCE.replace(old, new))
    changes = tool.compare(before, after)
    assert {change.name: change.level for change in changes}[name] == level
    assert tool.worst(changes) == level


def test_what_is_private_or_only_said_differently_is_no_change(tool: ModuleType) -> None:
    other = SOURCE.replace("_private()", "_other(x)").replace('"a"', "'a'").replace("= ()", "=()")
    assert tool.compare(tool.describe_module("m", SOURCE), tool.describe_module("m", other)) == []


@pytest.mark.parametrize(
    ("base", "level", "least"),
    [
        ("0.3.0", "addition", "0.3.1"),
        ("0.3.4", "breaking", "0.4.0"),
        ("1.2.3", "addition", "1.3.0"),
        ("1.2.3", "breaking", "2.0.0"),
        ("1.2.3", "none", "1.2.3"),
    ],
)
def test_the_version_that_a_change_needs(tool: ModuleType, base: str, level: str, least: str) -> None:
    assert tool.least_version(base, level) == least


PUBLISHED = CHANGELOG.format(unreleased="nothing yet.")


def record(tool: ModuleType, surface: dict, version: str = "0.3.0", base: str | None = None, level: str = "none"):
    return tool.Recorded(version, base, level, surface)


def test_a_change_of_a_published_surface_needs_a_version(tool: ModuleType) -> None:
    old = record(tool, {"a": "constant"})
    with pytest.raises(ValueError, match=r"addition: b is new(.|\n)*needs API_VERSION 0\.3\.1 or higher"):
        tool.next_record(old, {"a": "constant", "b": "constant"}, "0.3.0", PUBLISHED)
    with pytest.raises(ValueError, match=r"breaking: a is gone(.|\n)*needs API_VERSION 0\.4\.0 or higher"):
        tool.next_record(old, {}, "0.3.1", PUBLISHED)


def test_a_new_version_needs_its_line_in_the_changelog(tool: ModuleType) -> None:
    new = {"a": "constant", "b": "constant"}
    with pytest.raises(ValueError, match=r"CHANGELOG\.md does not name version 0\.3\.1"):
        tool.next_record(record(tool, {"a": "constant"}), new, "0.3.1", PUBLISHED)
    said = CHANGELOG.format(unreleased="0.3.1 adds b.")
    assert tool.next_record(record(tool, {"a": "constant"}), new, "0.3.1", said) == record(
        tool, new, "0.3.1", "0.3.0", "addition"
    )


def test_changes_add_up_until_the_version_is_published(tool: ModuleType) -> None:
    said = CHANGELOG.format(unreleased="0.3.1 adds b.")
    waiting = record(tool, {"a": "constant", "b": "constant"}, "0.3.1", "0.3.0", "addition")
    more = {**waiting.surface, "c": "constant"}
    assert tool.next_record(waiting, more, "0.3.1", said).surface == more
    with pytest.raises(ValueError, match=r"needs API_VERSION 0\.4\.0"):
        tool.next_record(waiting, {"b": "constant"}, "0.3.1", said)


def test_a_drift_says_what_to_do(tool: ModuleType) -> None:
    said = CHANGELOG.format(unreleased="0.3.1 adds b.")
    waiting = record(tool, {"a": "constant"}, "0.3.1", "0.3.0", "addition")
    text = tool.problem(waiting, {"a": "constant", "b": "constant"}, "0.3.1", said)
    assert "addition: b is new" in text
    assert "tools/api_surface.py --update" in text
    assert tool.problem(waiting, waiting.surface, "0.3.1", said) == ""
