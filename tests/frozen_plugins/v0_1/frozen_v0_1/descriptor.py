"""Every kind of record, with every field that a plugin of version 0.1 was likely to give."""

from __future__ import annotations

from inferplane_api.kv import KVLayout
from inferplane_api.spec import (
    AttentionRequest,
    AttentionSpec,
    ConfigPatch,
    DeviceInfo,
    Evidence,
    HeadSizes,
    HostInfo,
    KernelRequest,
    KernelSpec,
    Option,
    PageSizes,
    PlatformSpec,
    ProbeResult,
    ProbeState,
    Reason,
    SchedulingConstraints,
    Verdict,
    WeightFormatSpec,
)

DTYPES = frozenset({"float32", "float16"})
HERE = frozenset({"frozen_v0_1"})

PLATFORM = PlatformSpec(
    name="frozen_v0_1",
    load="frozen_v0_1.platform:FrozenPlatform",
    probe="frozen_v0_1.descriptor:probe",
    tier=0,
    evidence=Evidence(
        pci_vendors=(0xFFF0,),
        pci_classes=(0x12,),
        device_paths=("/dev/frozen_v0_1_*",),
        container_hint="docker run --device /dev/frozen_v0_1_0",
    ),
    requires_torch=">=2.9",
    attention_preference=("frozen_v0_1.loop",),
    scheduling=SchedulingConstraints(mixed_steps=False, max_chunk=64, max_sequences=64, queue_depth=1),
    config_patches=(ConfigPatch(path="cache.memory_utilization", value=0.4, reason="the memory is shared"),),
    options=(Option(name="gain", type="float", default=1.0, doc="Must be 1.", variable="INFERPLANE_FROZEN_V0_1_GAIN"),),
    features=frozenset({"frozen"}),
)

ATTENTION = AttentionSpec(
    id="frozen_v0_1.loop",
    load="frozen_v0_1.attention:LoopAttention",
    platforms=HERE,
    kinds=frozenset({"full"}),
    dtypes=DTYPES,
    kv_dtypes=DTYPES,
    head_sizes=HeadSizes(multiple_of=8, max=128),
    page_sizes=PageSizes(multiple_of=8),
    requires=frozenset({"in_place_kv_write"}),
    graph_level="never",
    batch_invariant=True,
    layouts=(KVLayout(order="thd", content="k_v_planes"),),
    score=60,
    aliases=("FROZEN_V0_1",),
    check="frozen_v0_1.descriptor:check_attention",
)

OPS = KernelSpec(
    id="frozen_v0_1.ops",
    kind="ops",
    load="frozen_v0_1.ops:PROVIDER",
    platforms=HERE,
    ops=("rms_norm@1",),
    dtypes=DTYPES,
    score=60,
    check="frozen_v0_1.descriptor:check_kernel",
)

LINEAR = KernelSpec(
    id="frozen_v0_1.linear",
    kind="linear",
    load="frozen_v0_1.linear:RawLinear",
    platforms=HERE,
    schemes=("dense", "frozen_v0_1.raw"),
    dtypes=DTYPES,
    score=60,
    check="frozen_v0_1.descriptor:check_kernel",
)

FORMAT = WeightFormatSpec(
    id="frozen_v0_1.raw",
    load="frozen_v0_1.format:RawFormat",
    name="frozen_v0_1",
    quant_methods=("frozen_v0_1",),
    aliases=("frozen-raw",),
)


def probe(host: HostInfo) -> ProbeResult:
    """Always there."""
    device = DeviceInfo(
        index=0,
        name=f"frozen 0.1 on {host.machine}",
        dtypes=DTYPES,
        features=frozenset({"in_place_kv_write"}),
        arch="0.1",
        preferred_dtype="float16",
    )
    return ProbeResult(state=ProbeState.PRESENT, devices=(device,))


def check_attention(request: AttentionRequest) -> Verdict:
    """No more than 8 heads of queries share a key head."""
    if request.num_heads <= 8 * request.num_kv_heads:
        return Verdict()
    reason = Reason(code="frozen_v0_1.sharing", field="num_heads", want=str(request.num_heads), have="8 a key head")
    return Verdict((reason,))


def check_kernel(request: KernelRequest) -> Verdict:
    """All that the data allows, on a device of this plugin."""
    if request.device.arch == "0.1":
        return Verdict()
    return Verdict((Reason(code="frozen_v0_1.arch", field="arch", want="0.1", have=request.device.arch),))
