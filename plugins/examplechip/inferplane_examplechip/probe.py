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
    """PRESENT with a chip, ABSENT without one, BROKEN when what the variables say makes no sense."""
    try:
        count, memory = _number(DEVICES_VARIABLE, _device_nodes()), _number(MEMORY_VARIABLE, MEMORY_MIB)
    except ValueError as error:
        return _no(ProbeState.BROKEN, Reason(code="examplechip.variable", hint=str(error)))
    if count == 0:
        hint = f"plug one in, or simulate one with {DEVICES_VARIABLE}=1"
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


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r} is not a number: unset it or correct it")
    return int(text)


def _no(state: ProbeState, reason: Reason) -> ProbeResult:
    return ProbeResult(state=state, reasons=(reason,))
