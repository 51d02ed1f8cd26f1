"""What this distribution offers, as data; imports the light half of the contract and nothing else."""

from __future__ import annotations

from inferplane_api.kv import KVLayout
from inferplane_api.spec import (
    AttentionSpec,
    ConfigPatch,
    HeadSizes,
    KernelSpec,
    Option,
    PlatformSpec,
    SchedulingConstraints,
)

DTYPES = frozenset({"float32", "bfloat16", "float16"})

NATIVE_DTYPES = frozenset({"float32", "bfloat16"})
NATIVE = frozenset({"native_kernels"})
"""The device feature of a package that was built with its compiled kernels."""

PACKED_WEIGHTS = frozenset({"packed_weights"})
"""The device feature of a start that did not ask for dequantized weights."""

MAX_GRAPH_ROWS = 64

PLATFORM = PlatformSpec(
    name="cpu",
    load="inferplane_cpu.platform:CPUPlatform",
    probe="inferplane_cpu.probe:probe",
    tier=1,
    requires_torch=">=2.9",
    attention_preference=("cpu.native", "cpu.sdpa"),
    # Work is done in the calling thread: a second step in flight would only delay the first one's tokens.
    # A recorded step is a list of calls: every number of rows may have its own, and nothing is padded.
    scheduling=SchedulingConstraints(queue_depth=1, graph_rows=tuple(range(1, MAX_GRAPH_ROWS + 1))),
    options=(
        Option(
            name="isa",
            variable="INFERPLANE_CPU_ISA",
            doc="Instruction set of the native kernels: avx512_bf16, avx512, avx2, portable, neon; default: the best.",
        ),
        Option(
            name="weights",
            default="packed",
            variable="INFERPLANE_CPU_WEIGHTS",
            doc="What becomes of quantized weights: packed, multiplied with activations rounded to 8 bits, "
            "or dequantized to the model's type.",
        ),
    ),
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

NATIVE_ATTENTION = AttentionSpec(
    id="cpu.native",
    load="inferplane_cpu.native.attention:NativeAttention",
    platforms=frozenset({"cpu"}),
    kinds=frozenset({"full", "sliding"}),
    dtypes=NATIVE_DTYPES,
    kv_dtypes=NATIVE_DTYPES,
    head_sizes=HeadSizes(max=512),
    features=frozenset({"softcap", "logsumexp"}),
    requires=NATIVE | {"in_place_kv_write"},
    graph_level="always",
    # A head's keys side by side: they are read head by head.
    layouts=(KVLayout(order="htd"), KVLayout(order="thd")),
    score=80,
)

NATIVE_OPS = KernelSpec(
    id="cpu.native_ops",
    kind="ops",
    load="inferplane_cpu.native.ops:PROVIDER",
    platforms=frozenset({"cpu"}),
    ops=(
        "embedding@1",
        "rms_norm@1",
        "add_rms_norm@1",
        "rope@1",
        "rope_angles@1",
        "silu_mul@1",
        "gelu_tanh_mul@1",
        "gelu_mul@1",
        "largest@1",
        "gumbel_noise@1",
    ),
    dtypes=NATIVE_DTYPES,
    requires=NATIVE,
    score=80,
)

NATIVE_LINEAR = KernelSpec(
    id="cpu.native_linear",
    kind="linear",
    load="inferplane_cpu.native.linear:NativeLinear",
    platforms=frozenset({"cpu"}),
    schemes=("dense",),
    dtypes=NATIVE_DTYPES,
    requires=NATIVE,
    score=80,
)

NATIVE_QUANT = KernelSpec(
    id="cpu.native_quant",
    kind="linear",
    load="inferplane_cpu.native.quant_linear:NativeQuantLinear",
    platforms=frozenset({"cpu"}),
    schemes=tuple(f"ggml.{name}" for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")),
    dtypes=NATIVE_DTYPES,
    activation_bits=8,
    requires=NATIVE | PACKED_WEIGHTS,
    score=80,
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
