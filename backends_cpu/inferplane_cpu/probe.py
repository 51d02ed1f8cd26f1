"""Facts about the processor for selection; imports no torch and touches no device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane_api.spec import DeviceInfo, ProbeResult, ProbeState, Reason
from inferplane_cpu.instructions import multiplies_natively
from inferplane_cpu.native.library import instruction_sets, library_path

if TYPE_CHECKING:
    from inferplane_api.spec import HostInfo

MACHINES = frozenset({"x86_64", "amd64", "aarch64", "arm64"})

NATIVE_FEATURES = {"native_kernels", "graph_capture"}
"""What a build with the compiled kernels has besides."""

WEIGHTS = {"packed": {"packed_weights"}, "dequantized": set[str]()}
"""Values of the option, and the features each gives."""

_ARCHITECTURES = (
    ("amx_bf16", "amx"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512f", "avx512"),
    ("avx2", "avx2"),
    ("sve", "sve"),
    ("asimd", "neon"),
)
"""From the widest: a flag and what `DeviceInfo.arch` calls it."""


def probe(host: HostInfo) -> ProbeResult:
    """PRESENT on every x86-64 and ARM64 host."""
    if host.machine.lower() not in MACHINES:
        reason = Reason(
            code="cpu.machine", field="host.machine", want=", ".join(sorted(MACHINES)), have=host.machine or "unknown"
        )
        return ProbeResult(state=ProbeState.ABSENT, reasons=(reason,))
    isa = host.options.get("isa")
    native = library_path() is not None
    if isa is not None and (not native or isa not in instruction_sets()):
        have = ", ".join(instruction_sets()) if native else "no native kernels in this build"
        reason = Reason(code="cpu.isa", field="platform_option.isa", want=str(isa), have=have)
        return ProbeResult(state=ProbeState.INCOMPATIBLE, reasons=(reason,))
    weights = str(host.options.get("weights", "packed"))
    if weights not in WEIGHTS:
        reason = Reason(code="cpu.weights", field="platform_option.weights", want=" or ".join(WEIGHTS), have=weights)
        return ProbeResult(state=ProbeState.INCOMPATIBLE, reasons=(reason,))
    return ProbeResult(state=ProbeState.PRESENT, devices=(device_info(host, native=native, weights=weights),))


def device_info(host: HostInfo, *, native: bool, weights: str = "packed") -> DeviceInfo:
    """The host's processors as one device.

    torch computes in every listed type on any of them; `preferred_dtype` says which 16-bit checkpoints are worth
    keeping in 16 bit: without instructions for it, a bfloat16 product takes about ten times as long as a float32 one.
    """
    fast_bfloat16 = multiplies_natively("bfloat16", host.cpu_flags)
    arch = next((name for flag, name in _ARCHITECTURES if flag in host.cpu_flags), host.machine.lower())
    return DeviceInfo(
        name=host.cpu_model or host.machine,
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        features=frozenset(
            {"in_place_kv_write", "unified_memory"} | (NATIVE_FEATURES | WEIGHTS[weights] if native else set())
        ),
        arch=arch,
        preferred_dtype="bfloat16" if fast_bfloat16 else "float32",
    )
