"""Whether a platform's hardware is on this host, and whether it can be reached; turns an inspection into a record."""

from __future__ import annotations

import msgspec

from inferplane.host.hardware import HardwareTable, has_device_node, on_bus, seen
from inferplane.plugins.inspection import Inspected
from inferplane.plugins.records import NOT_EXPOSED, FoundPlatform
from inferplane_api.spec import HostInfo, PlatformSpec, ProbeResult, ProbeState, Reason


def found_platform(item: Inspected, host: HostInfo, hardware: HardwareTable) -> FoundPlatform:
    """The record of an inspected platform."""
    entry = item.entry
    spec = item.spec if isinstance(item.spec, PlatformSpec) else None
    on_host = _evidence(spec, entry.distribution, host, hardware)
    return FoundPlatform(
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        spec=spec,
        result=_with_exposure(item.result, spec, host),
        on_host=on_host,
    )


def _evidence(spec: PlatformSpec | None, distribution: str, host: HostInfo, hardware: HardwareTable) -> bool | None:
    """Whether the platform's hardware is on this host; without a descriptor, what an official package's name tells.

    None for a stranger's package whose descriptor cannot be read, and for a descriptor that declares no evidence.
    """
    if spec is not None:
        return seen(spec.evidence, host)
    known = hardware.for_package(distribution)
    return None if known is None else known.seen_on(host)


def _with_exposure(result: ProbeResult, spec: PlatformSpec | None, host: HostInfo) -> ProbeResult:
    """An ABSENT device that the bus shows and that has no node is in a container that does not pass it on."""
    if spec is None or result.state is not ProbeState.ABSENT or not spec.evidence.device_paths:
        return result
    if not on_bus(spec.evidence, host) or has_device_node(spec.evidence):
        return result
    if any(reason.code == NOT_EXPOSED for reason in result.reasons):
        return result
    want = ", ".join(spec.evidence.device_paths)
    reason = Reason(code=NOT_EXPOSED, field="device nodes", want=want, hint=spec.evidence.container_hint)
    return msgspec.structs.replace(result, reasons=(reason, *result.reasons))
