"""What core itself brings, through the same door as a plugin: the reference platform, its parts, and safetensors."""

from __future__ import annotations

from inferplane_api.kv import KVLayout
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import ANY_PLATFORM, AttentionSpec, KernelSpec, PlatformSpec, WeightFormatSpec

_ANYWHERE = frozenset({ANY_PLATFORM})
_DTYPES = frozenset({"float32", "bfloat16", "float16"})

REFERENCE_PLATFORM = PlatformSpec(
    name="reference",
    load="inferplane.builtin.platform:ReferencePlatform",
    probe="inferplane.builtin.probe:probe",
    tier=0,
)

REFERENCE_ATTENTION = AttentionSpec(
    id="reference.paged",
    load="inferplane_api.reference.attention:PagedAttention",
    platforms=_ANYWHERE,
    kinds=frozenset({"full", "sliding"}),
    dtypes=_DTYPES,
    kv_dtypes=_DTYPES,
    features=frozenset({"softcap", "logsumexp", "sinks"}),
    requires=frozenset({"in_place_kv_write"}),
    layouts=(KVLayout(order="thd"), KVLayout(order="htd")),
    score=10,
    aliases=("TORCH_REFERENCE",),
)

REFERENCE_OPS = KernelSpec(
    id="reference.ops",
    kind="ops",
    load="inferplane.builtin.ops:PROVIDER",
    platforms=_ANYWHERE,
    ops=tuple(schema.id for schema in SCHEMAS.values()),
    dtypes=_DTYPES,
    score=10,
)

REFERENCE_LINEAR = KernelSpec(
    id="reference.linear",
    kind="linear",
    load="inferplane.builtin.linear:ReferenceLinear",
    platforms=_ANYWHERE,
    schemes=("*",),
    dtypes=_DTYPES,
    score=10,
)

SAFETENSORS = WeightFormatSpec(
    id="hf.safetensors",
    name="safetensors",
    load="inferplane.checkpoint.safetensors_format:SafetensorsFormat",
)
