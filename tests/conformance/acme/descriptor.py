"""What the made-up distribution acme-chip offers. Tests change a line of it, or of its neighbours, into a lie."""

from inferplane_api.kv import KVLayout
from inferplane_api.spec import AttentionSpec, HeadSizes, KernelSpec, PageSizes, PlatformSpec

PLATFORM = PlatformSpec(name="acme", load="acme_chip.platform:Platform", probe="acme_chip.probe:probe", tier=5)

ATTENTION = AttentionSpec(
    id="acme.loop",
    load="acme_chip.attention:LoopAttention",
    platforms=frozenset({"acme"}),
    kinds=frozenset({"full", "sliding"}),
    dtypes=frozenset({"float32", "float16"}),
    kv_dtypes=frozenset({"float32", "float16"}),
    head_sizes=HeadSizes(exact=(16, 64)),
    page_sizes=PageSizes(exact=(16,)),
    features=frozenset({"softcap", "logsumexp"}),
    layouts=(KVLayout(order="htd"),),
    graph_level="decode",
    batch_invariant=True,
    score=60,
)

OPS = KernelSpec(
    id="acme.ops",
    kind="ops",
    load="acme_chip.kernels:PROVIDER",
    platforms=frozenset({"acme"}),
    ops=("rms_norm@1", "silu_mul@1", "kv_write@1"),
    dtypes=frozenset({"float32", "float16"}),
    score=60,
)

LINEAR = KernelSpec(
    id="acme.linear",
    kind="linear",
    load="acme_chip.kernels:Linear",
    platforms=frozenset({"acme"}),
    schemes=("dense", "ggml.q8_0"),
    dtypes=frozenset({"float32"}),
    score=60,
)
