"""The probe of the reference platform: torch on the host's processor is always there. Imports no torch."""

from __future__ import annotations

from inferplane_api.spec import DeviceInfo, HostInfo, ProbeResult, ProbeState, Reason


def probe(host: HostInfo) -> ProbeResult:
    """PRESENT wherever torch is installed."""
    if host.torch_version is None:
        reason = Reason(code="torch.missing", field="torch", want="installed", hint="pip install torch")
        return ProbeResult(state=ProbeState.BROKEN, reasons=(reason,))
    device = DeviceInfo(
        name=host.cpu_model or host.machine,
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        features=frozenset({"in_place_kv_write"}),
        arch=host.machine,
    )
    return ProbeResult(state=ProbeState.PRESENT, devices=(device,))
