"""What this distribution offers, as data; knows nothing about how a script is played."""

from __future__ import annotations

from inferplane_api.spec import (
    DeviceInfo,
    HostInfo,
    ModelPluginSpec,
    Option,
    PlatformSpec,
    ProbeResult,
    ProbeState,
)

PLATFORM = PlatformSpec(
    name="scripted",
    load="inferplane_scripted.platform:ScriptedPlatform",
    probe="inferplane_scripted.descriptor:probe",
    tier=0,
    runner_seam=True,
    options=(
        Option(
            name="script",
            type="str",
            default="",
            doc="Path of the JSON script; empty: a sequence made from the prompt.",
        ),
        Option(name="delay", type="float", default=0.0, doc="Seconds that a step takes; the script's own value wins."),
        Option(
            name="pages", type="int", default=4096, doc="Pages of the pretended pool where the user sets no number."
        ),
    ),
)

MODEL = ModelPluginSpec(
    model_type="scripted_bigram",
    load="inferplane_scripted.model:ScriptedBigram",
    describe="inferplane_scripted.describe:describe",
)


def probe(host: HostInfo) -> ProbeResult:
    """Always there: nothing is needed to play a script."""
    device = DeviceInfo(
        name="script",
        memory_bytes=host.memory_bytes,
        dtypes=frozenset({"float32", "bfloat16", "float16"}),
        features=frozenset({"in_place_kv_write"}),
    )
    return ProbeResult(state=ProbeState.PRESENT, devices=(device,))
