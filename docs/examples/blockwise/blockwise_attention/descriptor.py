"""What this package offers, as data; imports nothing heavy."""

from __future__ import annotations

from inferplane_api.spec import AttentionSpec, PageSizes

DTYPES = frozenset({"float32", "bfloat16", "float16"})

ATTENTION = AttentionSpec(
    id="blockwise.paged",
    load="blockwise_attention.attention:BlockwiseAttention",
    platforms=frozenset({"cpu"}),
    kinds=frozenset({"full", "sliding"}),
    dtypes=DTYPES,
    kv_dtypes=DTYPES,
    page_sizes=PageSizes(multiple_of=16),
    features=frozenset({"logsumexp"}),
    requires=frozenset({"in_place_kv_write"}),
    score=30,
)
