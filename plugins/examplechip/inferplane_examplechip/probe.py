"""Is there a chip on this host? Runs in a child process before anything is chosen; imports no torch."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from inferplane_api.spec import DeviceInfo, ProbeResult, ProbeState, Reason
from inferplane_examplechip.descriptor import DEVICES_VARIABLE, DTYPES, MEMORY_MIB, MEMORY_VARIABLE, PLATFORM

if TYPE_CHECKING:
    from inferplane_api.spec import HostInfo


def probe(host: HostInfo) -> ProbeResult:
    """PRESENT with a chip, ABSENT without one, BROKEN when what the options say makes no sense."""
    try:
        count = _option(host, "devices", DEVICES_VARIABLE, _device_nodes())
        memory = _option(host, "memory_mib", MEMORY_VARIABLE, MEMORY_MIB)
    except ValueError as error:
        return _no(ProbeState.BROKEN, Reason(code="examplechip.variable", hint=str(error)))
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


def _option(host: HostInfo, name: str, variable: str, default: int) -> int:
    """What core has read from flag, variable and default; from the variable itself where the caller read nothing."""
    if host.options:
        return int(host.options.get(name, default))
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is not a number: unset it or correct it")
    return int(text)


def _no(state: ProbeState, reason: Reason) -> ProbeResult:
    return ProbeResult(state=state, reasons=(reason,))
