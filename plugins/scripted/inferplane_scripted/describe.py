"""The architecture of a bigram checkpoint from its config; imports no torch."""

from __future__ import annotations

from typing import Any

from inferplane_api.model import LayerSpec, ModelSpec


def describe(config: dict[str, Any]) -> ModelSpec:
    """The spec of a `scripted_bigram` config: one layer that caches a little and is never asked for its attention."""
    vocab_size = int(config["vocab_size"])
    eos = config.get("eos_token_id")
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    return ModelSpec(
        model_type="scripted_bigram",
        architecture="ScriptedBigramForCausalLM",
        num_layers=1,
        hidden_size=vocab_size,
        intermediate_size=0,
        vocab_size=vocab_size,
        max_position=int(config["max_position_embeddings"]),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        layers=(
            LayerSpec(
                num_heads=int(config.get("num_attention_heads", 1)),
                num_kv_heads=int(config.get("num_key_value_heads", 1)),
                head_size=int(config.get("head_dim", 32)),
            ),
        ),
        num_parameters=vocab_size * vocab_size,
        eos_token_ids=eos_ids,
        bos_token_id=config.get("bos_token_id"),
    )
