"""Is there a chip on this host? Runs in a child process before anything is chosen; imports no torch."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING

from inferplane_api.spec import DeviceInfo, ProbeResult, ProbeState, Reason
from inferplane_examplechip.descriptor import DEVICES_VARIABLE, DTYPES, MEMORY_MIB, PLATFORM

if TYPE_CHECKING:
    from inferplane_api.spec import HostInfo


def probe(host: HostInfo) -> ProbeResult:
    """PRESENT with a chip, ABSENT without one, BROKEN when what the options say makes no sense."""
    # Core has read flag, variable and default, and passes on no value that is not of the option's type.
    count = int(host.options.get("devices", _device_nodes()))
    memory = int(host.options.get("memory_mib", MEMORY_MIB))
    for name, value, least in (("devices", count, 0), ("memory_mib", memory, 1)):
        if value < least:
            reason = Reason(code="examplechip.option", field=name, want=f"{least} or more", have=str(value))
            return _no(ProbeState.BROKEN, reason)
    if count == 0:
        hint = f"plug one in, or simulate one with {DEVICES_VARIABLE}=1 or --platform-option devices=1"
        want = ", ".join(PLATFORM.evidence.device_paths)
        return _no(ProbeState.ABSENT, Reason(code="device.none", field="device nodes", want=want, hint=hint))
    devices = (
        DeviceInfo(
            index=index,
            name=f"Example Chip {index} (simulated)",
            memory_bytes=memory * 2**20,
            dtypes=DTYPES,
            # None of the features that core knows: no graphs, no sleep, and no in-place write into a cache page.
            features=frozenset(),
            arch="example-1",
            # A real chip prefers float16; this one is simulated by the host, which is faster in float32.
            preferred_dtype="float32",
        )
        for index in range(count)
    )
    return ProbeResult(state=ProbeState.PRESENT, devices=tuple(devices))


def _device_nodes() -> int:
    return sum(len(glob.glob(pattern)) for pattern in PLATFORM.evidence.device_paths)


def _no(state: ProbeState, reason: Reason) -> ProbeResult:
    return ProbeResult(state=state, reasons=(reason,))
