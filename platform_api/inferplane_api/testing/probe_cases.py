"""Area "probe": the answer is one of the four states, makes sense, and comes on a host without the hardware too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferplane_api.spec import DeviceInfo, HostInfo, PlatformSpec, ProbeResult, ProbeState
from inferplane_api.testing.case import Case, Lie, require
from inferplane_api.testing.declarations import decoded, inspect_plugin
from inferplane_api.testing.observed import Probed

if TYPE_CHECKING:
    from inferplane_api.testing.declarations import Declarations, Inspection
    from inferplane_api.testing.kit import Kit

DTYPES = frozenset({"float32", "bfloat16", "float16"})

BARE_HOST = HostInfo(os="linux", machine="riscv64", cpu_model="none", cpu_count=1, memory_bytes=2**30)
"""A host with no torch, no device on its bus and a processor that few know."""


def cases(declarations: Declarations) -> list[Case]:
    """Four cases a platform of the distribution, one of them on a faked host."""
    found = []
    for probed in probes(declarations, declarations.probing):
        checks = {"state": _check_state, "devices": _check_devices, "twice": _check_twice}
        for name, check in checks.items():
            found.append(_case(f"{name}-{probed.function}", probed, partial(check, probed)))
        bare = partial(_check_bare, declarations, probed.function)
        found.append(_case(f"bare-host-{probed.function}", probed, bare))
    return found


def probes(declarations: Declarations, inspection: Inspection) -> list[Probed]:
    """What each declared probe did; where its process died, that is the answer of each."""
    if not inspection.failure:
        return inspection.seen.probed
    specs = [decoded(item) for item in declarations.inspection.seen.imported]
    functions = [spec.probe for spec in specs if isinstance(spec, PlatformSpec)]
    return [Probed(function=function, error=inspection.failure) for function in functions]


def _case(name: str, probed: Probed, run: partial[None]) -> Case:
    return Case(area="probe", name=name, level="core", claim=f"probe {probed.function} answers", run=run)


def _result(probed: Probed, index: int = 0) -> ProbeResult:
    what = f"probe {probed.function}"
    require(not probed.error, f"{what} gives no answer: {probed.error}")
    name = probed.type_names[index]
    require(name == "ProbeResult", f"{what} returns a {name}, not a ProbeResult")
    try:
        return msgspec.convert(probed.results[index], type=ProbeResult)
    except msgspec.ValidationError as error:
        raise Lie(f"{what} returns a ProbeResult with a field of the wrong type: {error}") from None


def _check_state(probed: Probed, kit: Kit) -> None:
    result = _result(probed)
    if result.state is ProbeState.PRESENT:
        require(bool(result.devices), f"probe {probed.function} says PRESENT without a device")
    else:
        message = f"probe {probed.function} says {result.state.value} without a reason"
        require(bool(result.reasons), message)


def _check_devices(probed: Probed, kit: Kit) -> None:
    devices = _result(probed).devices
    indices = [device.index for device in devices]
    require(len(set(indices)) == len(indices), f"probe {probed.function} gives the device indices {indices}")
    for device in devices:
        _check_device(device, f"probe {probed.function}, device {device.index}")


def _check_device(device: DeviceInfo, what: str) -> None:
    require(bool(device.dtypes), f"{what} computes in no type")
    require(device.dtypes <= DTYPES, f"{what} has the unknown types {sorted(device.dtypes - DTYPES)}")
    preferred = device.preferred_dtype
    require(preferred is None or preferred in device.dtypes, f"{what} prefers {preferred}, which it does not have")
    require(device.memory_bytes >= 0, f"{what} has {device.memory_bytes} bytes of memory")
    require(device.index >= 0, f"{what} has a negative index")


def check_probe(probed: Probed, kit: Kit) -> None:
    """Raise Lie unless the answer makes sense and is the same when asked twice."""
    for check in (_check_state, _check_devices, _check_twice):
        check(probed, kit)


def _check_twice(probed: Probed, kit: Kit) -> None:
    first, second = _result(probed), _result(probed, 1)
    require(first == second, f"probe {probed.function} answers {first.state.value}, then something else: {second}")


def _check_bare(declarations: Declarations, function: str, kit: Kit) -> None:
    for probed in probes(declarations, inspect_plugin(declarations.plugin, BARE_HOST, probe=True)):
        if probed.function == function:
            _check_state(probed, kit)
            return
    raise Lie(f"probe {function} was not reached on a host without hardware: its descriptor cannot be imported")
