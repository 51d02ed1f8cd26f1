"""The facts of an architecture that selection, memory planning and scheduling need; holds no weights and no code."""

from __future__ import annotations

import msgspec

from inferplane_api.kv import AttentionKind


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer asks of attention and of the cache."""

    kind: AttentionKind = "full"
    """"encoder": every token sees all tokens of its row, and nothing is kept: the layer belongs to no KV group."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    window: int | None = None
    """Tokens that a query sees, itself included (kind "sliding" only)."""
    features: frozenset[str] = frozenset()
    """Of {sinks, softcap, alibi, prefix-lm, non-causal}: what attention must be able to do."""
    scale: float | None = None
    """Multiplies q·k before the softmax; None: head_size ** -0.5."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap) (feature "softcap"). Layers of one KV group share both."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint's architecture, read from its config without importing torch."""

    model_type: str
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    """The longest context the checkpoint declares, in tokens."""
    dtype: str
    """Of the checkpoint's weights: "float32", "bfloat16" or "float16"."""
    layers: tuple[LayerSpec, ...]
    tie_word_embeddings: bool = False
    num_parameters: int = 0
    """An estimate from the shapes, used for memory planning before the weights are read; 0 when unknown."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    quantization: str | None = None
    """Name of the checkpoint's weight format where it is not plain, for example "ggml"."""
    features: frozenset[str] = frozenset()
    """Of {no_chunking, no_prefix_cache}: what the scheduler must not do with this model."""
