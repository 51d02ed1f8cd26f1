"""What is installed, from packaging metadata alone; imports no plugin and knows no state.

The first copy of a distribution on the path wins, as it does for `import`; later copies are reported, since
`importlib.metadata.entry_points()` hides them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from inferplane_api.spec import FIRST

PREFIX = "inferplane."
CORE = "inferplane"
API = "inferplane-api"

KINDS = (
    "platforms",
    "attention",
    "kernels",
    "quantization",
    "models",
    "plugins",
    "parsers",
    "grammars",
    "connectors",
    "speculators",
    "sources",
    "logits_processors",
    "adapters",
    "endpoints",
)
"""The entry-point groups without their prefix, one a kind of plugin."""


class PluginEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point of one distribution."""

    group: str
    name: str
    value: str
    """"module:attribute" of the descriptor."""
    distribution: str
    """Normalized name."""
    version: str
    api_range: str | None = None
    """Of `Requires-Dist: inferplane-api`; "" is any version, None: no such requirement."""
    torch_range: str | None = None
    """Of `Requires-Dist: torch`, likewise."""
    location: str = ""
    """The folder on the path where the metadata lies."""

    @property
    def kind(self) -> str:
        """The group without its prefix: "platforms"."""
        return self.group.removeprefix(PREFIX)


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution that is installed more than once."""

    distribution: str
    used: str
    """"version in folder" of the copy that imports find."""
    hidden: tuple[str, ...]
    """The others."""


def list_entry_points() -> list[PluginEntry]:
    """Every entry point of an `inferplane.*` group, in order of group, distribution and name.

    Groups that this core does not know are listed too, so that a misspelt one is seen. Imports nothing.
    """
    return read_installed()[0]


def read_installed() -> tuple[list[PluginEntry], list[str]]:
    """What `list_entry_points` gives; and, "FOLDER: ERROR", each distribution whose metadata cannot be understood."""
    entries: list[PluginEntry] = []
    faults: list[str] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            if not _is_plugin(distribution):
                continue
            metadata = distribution.metadata
            name = canonicalize_name(metadata["Name"])
            if name not in seen:
                entries += _entries_of(distribution, name, metadata["Version"])
                seen.add(name)
        except Exception as error:  # one damaged package must not hide all the others
            place = getattr(distribution, "_path", None) or distribution.locate_file("")
            faults.append(f"{place}: {type(error).__name__}: {error}")
    return sorted(entries, key=lambda entry: (entry.group, entry.distribution, entry.name)), faults


def list_copies(names: Iterable[str]) -> list[Copies]:
    """Distributions among `names` with more than one copy on the path: shadowed installs and stale metadata."""
    copies = []
    for name in sorted(set(names)):
        places = list(dict.fromkeys(_place(found) for found in importlib.metadata.distributions(name=name)))
        if len(places) > 1:
            copies.append(Copies(distribution=name, used=places[0], hidden=tuple(places[1:])))
    return copies


def list_leftovers() -> list[str]:
    """Folders that an interrupted removal left on the path, "~cme_npu-1.2.dist-info in FOLDER"."""
    found = []
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            found += [
                f"{name} in {folder}"
                for name in sorted(os.listdir(folder or "."))
                if name.startswith("~") and name.endswith((".dist-info", ".egg-info"))
            ]
    return found


def installed(name: str) -> bool:
    """True when a distribution of this name is there, with or without entry points."""
    return any(True for _ in importlib.metadata.distributions(name=name))


def admits(specifier: str | None, version: str | None) -> bool:
    """True when a version fits a requirement's range; no range admits anything, no version only that."""
    if specifier is None:
        return True
    if version is None:
        return False
    return SpecifierSet(specifier).contains(version, prereleases=True)


def lowest_api(specifier: str | None) -> str:
    """The oldest contract that a range admits, "0.1": what the plugin may have been built against.

    The contract's first version where the range has no lower bound.
    """
    bounds = [
        Version(part.version.removesuffix(".*"))
        for part in SpecifierSet(specifier or "")
        if part.operator in (">=", ">", "~=", "==")
    ]
    return str(max([Version(FIRST), *bounds]))


def _is_plugin(distribution: Distribution) -> bool:
    text = distribution.read_text("entry_points.txt")
    # What an interrupted pip leaves behind has a folder that begins with "~", or no metadata; `doctor` reports it.
    leftover = Path(str(getattr(distribution, "_path", ""))).name.startswith("~")
    mentioned = bool(text) and f"[{PREFIX}" in str(text).replace(" ", "")
    return mentioned and not leftover and bool(distribution.read_text("METADATA"))


def _entries_of(distribution: Distribution, name: str, version: str) -> list[PluginEntry]:
    requirements = distribution.requires or []
    api_range, torch_range = _range_of(requirements, API), _range_of(requirements, "torch")
    location = str(distribution.locate_file(""))
    return [
        PluginEntry(
            group=point.group,
            name=point.name,
            value=point.value,
            distribution=name,
            version=version,
            api_range=api_range,
            torch_range=torch_range,
            location=location,
        )
        for point in distribution.entry_points
        if point.group.startswith(PREFIX)
    ]


def _range_of(requirements: list[str], name: str) -> str | None:
    """The specifiers of all unconditional requirements on `name`, joined; None when there is none."""
    found: list[str] = []
    for text in requirements:
        # Parsing is slow, and most requirements are on something else.
        if not canonicalize_name(text).startswith(name):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) == name:
            parts = (str(part) for part in requirement.specifier)
            found.append(",".join(sorted(parts, key=lambda part: (part.startswith("<"), part))))
    return ",".join(part for part in found if part) if found else None


def _place(distribution: Distribution) -> str:
    return f"{distribution.version} in {distribution.locate_file('')}"
