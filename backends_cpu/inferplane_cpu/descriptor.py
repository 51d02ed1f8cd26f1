"""What this distribution offers, as data; imports the light half of the contract and nothing else."""

from __future__ import annotations

from inferplane_api.spec import (
    AttentionSpec,
    ConfigPatch,
    KernelSpec,
    PlatformSpec,
    SchedulingConstraints,
)

DTYPES = frozenset({"float32", "bfloat16", "float16"})

PLATFORM = PlatformSpec(
    name="cpu",
    load="inferplane_cpu.platform:CPUPlatform",
    probe="inferplane_cpu.probe:probe",
    tier=1,
    requires_torch=">=2.9",
    attention_preference=("cpu.sdpa",),
    # Work is done in the calling thread: a second step in flight would only delay the first one's tokens.
    scheduling=SchedulingConstraints(queue_depth=1),
    communicator="gloo",
    config_patches=(
        ConfigPatch(
            path="cache.memory_utilization",
            value=0.5,
            reason="the memory is shared with everything else on the host, file cache included",
        ),
    ),
)

ATTENTION = AttentionSpec(
    id="cpu.sdpa",
    load="inferplane_cpu.attention:SDPAAttention",
    platforms=frozenset({"cpu"}),
    kinds=frozenset({"full", "sliding"}),
    dtypes=DTYPES,
    kv_dtypes=DTYPES,
    requires=frozenset({"in_place_kv_write"}),
    score=45,
    aliases=("TORCH_SDPA",),
)

OPS = KernelSpec(
    id="cpu.ops",
    kind="ops",
    load="inferplane_cpu.ops:PROVIDER",
    platforms=frozenset({"cpu"}),
    ops=("rms_norm@1", "add_rms_norm@1", "rope@1", "silu_mul@1", "kv_write@1", "gumbel_noise@1"),
    dtypes=DTYPES,
    score=45,
)

LINEAR = KernelSpec(
    id="cpu.linear",
    kind="linear",
    load="inferplane_cpu.linear:CPULinear",
    platforms=frozenset({"cpu"}),
    schemes=("dense",),
    dtypes=DTYPES,
    score=45,
)
