"""Everything that a distribution declares, read from metadata and in a child process; imports none of its code here."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from inferplane_api.internal.host_facts import collect_host
from inferplane_api.spec import (
    ANY_PLATFORM,
    GROUPS,
    AttentionSpec,
    HostInfo,
    KernelSpec,
    PlatformSpec,
    ProbeResult,
    ProbeState,
)
from inferplane_api.testing.observed import Entry, Imported, Inspect, Inspected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PLATFORMS = "inferplane.platforms"
TIMEOUT = 20.0
"""Seconds for a child; core waits for half of that."""


class Inspection(NamedTuple):
    """What a child saw, or why it gave no answer."""

    seen: Inspected
    failure: str


class Plugin(NamedTuple):
    """One distribution, as metadata has it."""

    name: str
    version: str
    api_range: str | None
    """Of `Requires-Dist: inferplane-api`; "" is any version, None: no such requirement."""
    torch_range: str | None
    """Of `Requires-Dist: torch`, likewise."""
    entries: tuple[Entry, ...]
    modules: tuple[str, ...]
    """Top-level modules of its entry points."""


class Declarations(NamedTuple):
    """What is under test."""

    platform: str
    plugin: Plugin
    """The distribution whose declarations are proven."""
    owner: Plugin
    """The distribution of the platform; the same unless an overlay is tested."""
    inspection: Inspection
    """Of the descriptors."""
    probing: Inspection
    """Of the descriptors and, after them, the probes."""
    host: HostInfo
    spec: PlatformSpec | None
    """None when the descriptor cannot be read."""
    probe: ProbeResult | None

    @property
    def present(self) -> bool:
        """True when there is a device to run on."""
        return self.probe is not None and self.probe.state is ProbeState.PRESENT and bool(self.probe.devices)

    @property
    def device_features(self) -> frozenset[str]:
        """What the platform says that some device of its has: those of this host, and those that its descriptor
        lists for others."""
        listed = frozenset() if self.spec is None else self.spec.features
        return listed.union(*(device.features for device in self.probe.devices)) if self.probe else listed

    def attention(self) -> list[AttentionSpec]:
        """Attention backends that declare this platform."""
        return [spec for spec in self._specs(AttentionSpec) if self._is_for(spec.platforms)]

    def kernels(self, kind: str) -> list[KernelSpec]:
        """Kernels of a kind that declare this platform."""
        return [spec for spec in self._specs(KernelSpec) if spec.kind == kind and self._is_for(spec.platforms)]

    def _is_for(self, platforms: frozenset[str]) -> bool:
        return self.platform in platforms or ANY_PLATFORM in platforms

    def _specs(self, kind: type[Any]) -> Iterator[Any]:
        for item in self.inspection.seen.imported:
            if GROUPS.get(item.entry.group) is kind and (spec := decoded(item)) is not None:
                yield spec


def installed_plugins() -> list[Plugin]:
    """Every distribution with an entry point of ours; the first copy on the path counts."""
    from inferplane_api.internal.inventory import list_entry_points

    groups: dict[str, list[Any]] = {}
    for entry in list_entry_points():
        groups.setdefault(entry.distribution, []).append(entry)
    return [
        Plugin(
            name=name,
            version=entries[0].version,
            api_range=entries[0].api_range,
            torch_range=entries[0].torch_range,
            entries=tuple(Entry(entry.group, entry.name, entry.value) for entry in entries),
            modules=tuple(sorted({entry.value.partition(":")[0].partition(".")[0] for entry in entries})),
        )
        for name, entries in groups.items()
    ]


def declare(platform: str, overlay: str | None = None) -> Declarations:
    """Read what the platform's distribution, or an overlay for it, declares. Raises LookupError for an unknown name."""
    from packaging.utils import canonicalize_name

    plugins = installed_plugins()
    owners = {entry.name: plugin for plugin in plugins for entry in plugin.entries if entry.group == PLATFORMS}
    if platform not in owners:
        raise LookupError(f"no platform {platform!r}; installed: {', '.join(sorted(owners)) or 'none'}")
    owner = owners[platform]
    wanted = owner.name if overlay is None else canonicalize_name(overlay)
    plugin = next((each for each in plugins if each.name == wanted), owner)
    if plugin.name != wanted:
        raise LookupError(f"no plugin distribution {overlay!r}; installed: {', '.join(each.name for each in plugins)}")
    host = collect_host()
    inspection, probing = _inspect_twice(plugin, host)
    of_owner = (inspection, probing) if plugin is owner else _inspect_twice(owner, host)
    spec = _platform_spec(of_owner[0], platform)
    return Declarations(
        platform=platform,
        plugin=plugin,
        owner=owner,
        inspection=inspection,
        probing=probing,
        host=host,
        spec=spec,
        probe=None if spec is None else _probe_result(of_owner[1], spec.probe),
    )


def _inspect_twice(plugin: Plugin, host: HostInfo) -> tuple[Inspection, Inspection]:
    """(what the descriptors say, the same and the probes). One child gives both unless a probe ends it."""
    probing = inspect_plugin(plugin, host, probe=True)
    return (inspect_plugin(plugin, host) if probing.failure else probing), probing


def inspect_plugin(
    plugin: Plugin,
    host: HostInfo,
    *,
    probe: bool = False,
    options: Mapping[str, bool] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Inspection:
    """Ask a child, with some values of options other than the default, and some more environment variables."""
    request = Inspect(
        entries=list(plugin.entries), host=host, own=list(plugin.modules), probe=probe, options=dict(options or {})
    )
    answer = run_child("inferplane_api.testing.child", msgspec.json.encode(request), variables=variables)
    if isinstance(answer, str):
        return Inspection(Inspected(), answer)
    return Inspection(msgspec.json.decode(answer, type=Inspected), "")


def run_child(
    module: str, request: bytes, timeout: float | None = None, variables: Mapping[str, str] | None = None
) -> bytes | str:
    """The answer of `python -m module`, or in words why there was none in `timeout` (TIMEOUT) seconds."""
    timeout = TIMEOUT if timeout is None else timeout
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(variables or {})}
    command = [sys.executable, "-m", module]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=timeout, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"its process hangs: no answer in {timeout:.0f} s"
    if done.returncode == 0 and done.stdout:
        return done.stdout
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    end = f"with status {done.returncode}" if done.returncode >= 0 else f"by signal {-done.returncode}"
    return f"its process ended {end}: {lines[-1] if lines else 'no message'}"


def decoded(item: Imported) -> Any:
    """The descriptor of an entry point; None when it is none or its fields have the wrong types."""
    if item.value is None:
        return None
    try:
        return msgspec.convert(item.value, type=GROUPS[item.entry.group])
    except msgspec.ValidationError:
        return None


def _platform_spec(inspection: Inspection, name: str) -> PlatformSpec | None:
    for item in inspection.seen.imported:
        if item.entry.group == PLATFORMS and item.entry.name == name:
            spec = decoded(item)
            return spec if isinstance(spec, PlatformSpec) else None
    return None


def _probe_result(inspection: Inspection, function: str) -> ProbeResult | None:
    for probed in inspection.seen.probed:
        if probed.function == function and probed.results:
            try:
                return msgspec.convert(probed.results[0], type=ProbeResult)
            except msgspec.ValidationError:
                return None
    return None
