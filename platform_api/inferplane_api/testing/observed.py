"""What an inspecting child is asked and what it saw: messages, no behaviour."""

from __future__ import annotations

from typing import Any

import msgspec

from inferplane_api.spec import HostInfo


class Entry(msgspec.Struct, frozen=True):
    """One entry point of a distribution."""

    group: str
    name: str
    value: str


class Inspect(msgspec.Struct, frozen=True):
    """Import these descriptors and then, where `probe` says so, call the probes of platforms, each twice."""

    entries: list[Entry]
    host: HostInfo
    own: list[str]
    """Top-level modules of the distribution itself."""
    probe: bool = False
    options: dict[str, str | int | float | bool] = {}
    """Values of platforms' options other than the default."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The side effects of importing a descriptor module or of running a probe."""

    stage: str
    """"descriptor" or "probe"."""
    subject: str
    """The module or the function."""
    seconds: float
    modules: list[str] = []
    """Modules that a descriptor must not import."""
    environment: list[str] = []
    """Variables and process settings that changed."""
    threads: list[str] = []
    """Threads that are still there."""
    stdout: str = ""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one entry point: a descriptor, as plain data, or an error."""

    entry: Entry
    type_name: str = ""
    value: Any = None
    error: str = ""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one probe, called twice."""

    function: str
    results: list[Any] = []
    type_names: list[str] = []
    error: str = ""


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a child saw."""

    imported: list[Imported] = []
    probed: list[Probed] = []
    observations: list[Observation] = []
