"""What this distribution offers, as data; imports the light half of the contract and nothing else."""

from __future__ import annotations

from inferplane_api.kv import KVLayout
from inferplane_api.spec import (
    AttentionSpec,
    Evidence,
    HeadSizes,
    KernelSpec,
    Option,
    PageSizes,
    PlatformSpec,
    SchedulingConstraints,
)

DTYPES = frozenset({"float16", "float32"})
TOKEN_BUCKETS = (8, 32, 128, 512)
BATCH_BUCKETS = (1, 4, 16)
PAGE_SIZE = 128
DEVICES_VARIABLE = "INFERPLANE_EXAMPLECHIP_DEVICES"
MEMORY_VARIABLE = "INFERPLANE_EXAMPLECHIP_MEMORY_MIB"
MEMORY_MIB = 4096

PLATFORM = PlatformSpec(
    name="examplechip",
    load="inferplane_examplechip.platform:ExampleChipPlatform",
    probe="inferplane_examplechip.probe:probe",
    tier=5,
    evidence=Evidence(
        device_paths=("/dev/examplechip[0-9]*",),
        container_hint="pass the device on: docker run --device /dev/examplechip0",
    ),
    requires_torch=">=2.9",
    scheduling=SchedulingConstraints(
        token_buckets=TOKEN_BUCKETS,
        batch_buckets=BATCH_BUCKETS,
        mixed_steps=False,
    ),
    options=(
        Option(name="devices", type="int", doc="Number of simulated chips.", variable=DEVICES_VARIABLE),
        Option(
            name="memory_mib",
            type="int",
            default=MEMORY_MIB,
            doc="Memory of a chip in MiB.",
            variable=MEMORY_VARIABLE,
        ),
    ),
)

ATTENTION = AttentionSpec(
    id="examplechip.paged",
    load="inferplane_examplechip.attention:ExampleChipAttention",
    platforms=frozenset({"examplechip"}),
    kinds=frozenset({"full", "sliding"}),
    dtypes=DTYPES,
    kv_dtypes=DTYPES,
    head_sizes=HeadSizes(multiple_of=8, max=256),
    page_sizes=PageSizes(exact=(PAGE_SIZE,)),
    layouts=(KVLayout(order="htd"),),
    score=80,
)

OPS = KernelSpec(
    id="examplechip.ops",
    kind="ops",
    load="inferplane_examplechip.ops:PROVIDER",
    platforms=frozenset({"examplechip"}),
    ops=("rms_norm@1",),
    dtypes=DTYPES,
    score=80,
)
