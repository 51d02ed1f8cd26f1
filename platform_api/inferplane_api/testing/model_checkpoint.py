"""A tiny random model as a checkpoint of safetensors; knows the names of its weights and runs nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 256
NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 2, 4, 2
MAX_POSITION = 16384


def write(folder: Path, head_size: int, window: int | None) -> None:
    """A random Llama, or a Mistral whose every layer sees `window` tokens; float32, untied."""
    import torch
    from safetensors.torch import save_file

    hidden, wide = NUM_HEADS * 16, 128
    config = {
        "architectures": ["LlamaForCausalLM" if window is None else "MistralForCausalLM"],
        "model_type": "llama" if window is None else "mistral",
        "sliding_window": window,
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": head_size,
        "max_position_embeddings": MAX_POSITION,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    weights = {"model.embed_tokens.weight": normal(VOCAB, hidden), "lm_head.weight": normal(VOCAB, hidden)}
    weights["model.norm.weight"] = 1 + normal(hidden)
    for index in range(NUM_LAYERS):
        shapes = {
            "self_attn.q_proj": (NUM_HEADS * head_size, hidden),
            "self_attn.k_proj": (NUM_KV_HEADS * head_size, hidden),
            "self_attn.v_proj": (NUM_KV_HEADS * head_size, hidden),
            "self_attn.o_proj": (hidden, NUM_HEADS * head_size),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        prefix = f"model.layers.{index}"
        weights.update({f"{prefix}.{name}.weight": normal(*shape) for name, shape in shapes.items()})
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = 1 + normal(hidden)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
