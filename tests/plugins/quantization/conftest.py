"""GGUF files made on the spot with the `gguf` package's writer, the way llama.cpp's converter makes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA3_LAYER = LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}

CONFIG: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
EXTRA: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {"head_dim": 16, "tie_word_embeddings": True},
    # What transformers takes for granted, as it does not read this from the file.
    "qwen3": {"head_dim": 128},
    "gemma3_text": {
        "num_hidden_layers": 6,
        "sliding_window": 32,
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
    },
}


def to_gguf_name(name: str, model_type: str) -> str:
    module, kind = name.rsplit(".", 1)
    if module in TOP:
        return f"{TOP[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    table = GEMMA3_LAYER if model_type == "gemma3_text" else LAYER
    return f"blk.{layer}.{table[rest]}.{kind}"


def as_converted(name: str, tensor: torch.Tensor, model_type: str, config: dict[str, Any]) -> np.ndarray:
    """llama.cpp's converter: rotary pairs side by side in llama's q and k, gemma's norms as 1 + w."""
    values = tensor.detach().float().numpy()
    if model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        shape = values.shape
        values = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    if model_type == "gemma3_text" and "norm" in name:
        values = values + 1.0
    return np.ascontiguousarray(values)


def write_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([chr(0x21 + i) for i in range(config["vocab_size"] - 2)] + ["<eos>", "<bos>"])
    writer.add_token_types([1] * (config["vocab_size"] - 2) + [3, 3])
    writer.add_token_merges([])
    writer.add_eos_token_id(config["vocab_size"] - 2)
    writer.add_bos_token_id(config["vocab_size"] - 1)


def quantize(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    return gguf.quants.quantize(values, kind)


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """`make(model_type, kind=F32, change=lambda writer: None) -> (file, transformers model)` of random weights.

    Matrices are of ggml type `kind`; `model` holds what was put in, before quantization.
    """

    def make(
        model_type: str,
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
        **overrides: Any,
    ) -> tuple[Path, Any]:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = CONFIG | EXTRA[model_type] | overrides
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        path = tmp_path_factory.mktemp(model_type) / "model.gguf"
        writer = gguf.GGUFWriter(path, ARCHITECTURES[model_type])
        write_metadata(writer, config)
        change(writer)
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and config["tie_word_embeddings"]:
                continue
            values = as_converted(name, tensor, model_type, config)
            target = to_gguf_name(name, model_type)
            if values.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
                writer.add_tensor(target, quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(target, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path, model

    return make
