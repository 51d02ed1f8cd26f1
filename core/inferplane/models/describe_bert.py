"""Reads what selection and memory planning need out of a BERT's config.json; imports no torch, reads no weights."""

from __future__ import annotations

from typing import Any

from inferplane.models.fields import Fields
from inferplane_api.errors import InvalidValue
from inferplane_api.model import LayerSpec, ModelSpec

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh")


def bert(config: dict[str, Any]) -> ModelSpec:
    """Every layer sees the whole text in both directions and keeps nothing, so a prompt is computed in one step."""
    fields = Fields(config)
    hidden, num_heads = fields.integer("hidden_size", 768), fields.integer("num_attention_heads", 12)
    inner, num_layers = fields.integer("intermediate_size", 3072), fields.integer("num_hidden_layers", 12)
    vocab, positions = fields.integer("vocab_size", 30_522), fields.integer("max_position_embeddings", 512)
    segments = fields.integer("type_vocab_size", 2)
    fields.number("layer_norm_eps", 1e-12)
    if hidden % num_heads:
        raise InvalidValue("hidden_size", hidden, f"is not a multiple of num_attention_heads={num_heads}")
    _require(config, "hidden_act", "gelu", ACTIVATIONS)
    _require(config, "position_embedding_type", "absolute", ("absolute",))
    for name in ("is_decoder", "add_cross_attention"):
        _require(config, name, False, (False,))
    layer = LayerSpec(kind="encoder", num_heads=num_heads, num_kv_heads=num_heads, head_size=hidden // num_heads)
    per_layer = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return ModelSpec(
        model_type=fields.text("model_type"),
        architecture=fields.architecture(),
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocab,
        max_position=positions,
        dtype=fields.dtype(),
        layers=(layer,) * num_layers,
        num_parameters=(vocab + positions + segments + 2) * hidden + num_layers * per_layer,
        quantization=fields.quantization(),
        features=frozenset({"no_chunking", "no_prefix_cache"}),
    )


def _require(config: dict[str, Any], name: str, default: object, known: tuple[object, ...]) -> None:
    value = config.get(name)
    if (default if value is None else value) not in known:
        raise InvalidValue(name, value, f"is not supported in a BERT: {', '.join(map(str, known))}")
