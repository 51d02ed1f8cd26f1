"""A config's description against transformers' own reading of it, and the errors of configs that make no sense."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers

from inferplane.checkpoint.model_spec import model_spec
from inferplane.models.registry import MODELS, REGISTRY
from inferplane_api.errors import InferplaneError, InvalidValue

SMALL: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
CONFIGS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 2, "head_dim": 24, "attention_bias": True, "mlp_bias": True}),
    (
        "llama",
        {"tie_word_embeddings": True, "eos_token_id": [5, 6], "bos_token_id": None, "max_position_embeddings": 9},
    ),
    ("mistral", {"num_key_value_heads": 2}),
    ("mistral", {"num_key_value_heads": 4, "sliding_window": None}),
    ("mistral", {"num_key_value_heads": 2, "sliding_window": 7, "head_dim": 32}),
    ("qwen2", {"num_key_value_heads": 2}),
    ("qwen2", {"num_key_value_heads": 2, "sliding_window": 7}),
    ("qwen2", {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3}),
    ("qwen2", {"num_key_value_heads": 2, "use_sliding_window": True}),
    ("qwen3", {"num_key_value_heads": 4}),
    ("qwen3", {"num_key_value_heads": 1, "head_dim": 16, "attention_bias": True, "eos_token_id": 3}),
    ("gemma3_text", {}),
    ("gemma3_text", {"num_key_value_heads": 1, "head_dim": 32, "sliding_window_pattern": 3, "sliding_window": 9}),
    ("gemma3_text", {"layer_types": ["full_attention", "sliding_attention"] * 4, "query_pre_attn_scalar": 50}),
    ("gemma3_text", {"attention_bias": True, "tie_word_embeddings": False, "eos_token_id": [1, 106]}),
]


def flatten(ids: int | list[int] | None) -> tuple[int, ...]:
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS)
def test_reads_a_config_as_transformers_does(model_type: str, changes: dict[str, Any]) -> None:
    """The raw config holds only what is given here: everything else is a default of transformers."""
    config_class, model_class = CONFIGS[model_type]
    theirs = config_class(**SMALL, **changes)
    ours = model_spec({**SMALL, **changes, "model_type": model_type})
    assert ours.model_type == model_type
    assert (ours.num_layers, ours.hidden_size, ours.intermediate_size, ours.vocab_size) == (8, 64, 96, 90)
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.eos_token_ids == flatten(theirs.eos_token_id)
    assert flatten(ours.bos_token_id) == flatten(theirs.bos_token_id)
    head_size = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    kinds = getattr(theirs, "layer_types", None)
    for index, layer in enumerate(ours.layers):
        assert (layer.num_heads, layer.num_kv_heads) == (4, theirs.num_key_value_heads)
        assert layer.head_size == head_size
        windowed = kinds[index] == "sliding_attention" if kinds else getattr(theirs, "sliding_window", None) is not None
        assert layer.kind == ("sliding" if windowed else "full")
        assert layer.window == (theirs.sliding_window if windowed else None)
        scalar = getattr(theirs, "query_pre_attn_scalar", None)
        assert layer.scale == (None if scalar is None else scalar**-0.5)
    with torch.device("meta"):
        model = model_class(theirs)
        model.tie_weights()
    assert ours.num_parameters == sum(p.numel() for p in model.parameters())


def test_every_listed_type_is_tested() -> None:
    assert set(CONFIGS) | {"gemma3", "bert"} == set(MODELS) == set(REGISTRY)


def test_reads_a_bert_as_transformers_does() -> None:
    """Nothing but the sizes is said: everything else is a default of transformers."""
    theirs = transformers.BertConfig(**SMALL)
    ours = model_spec({**SMALL, "model_type": "bert"})
    assert (ours.num_layers, ours.hidden_size, ours.vocab_size) == (8, 64, 90)
    assert ours.max_position == theirs.max_position_embeddings
    assert {(layer.kind, layer.num_heads, layer.num_kv_heads, layer.head_size) for layer in ours.layers} == {
        ("encoder", 4, 4, 16)
    }
    assert ours.features == {"no_chunking", "no_prefix_cache"}
    with torch.device("meta"):
        model = transformers.BertModel(theirs, add_pooling_layer=False)
    assert ours.num_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "relu"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("num_attention_heads", 5),
    ],
)
def test_a_bert_that_would_be_computed_wrongly_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidValue, match="hidden_size" if field == "num_attention_heads" else field):
        model_spec({**SMALL, "model_type": "bert", field: value})


def test_text_and_vision_gemma3_is_read_by_its_text_part() -> None:
    text = transformers.Gemma3TextConfig(**SMALL, sliding_window=9)
    both = transformers.Gemma3Config(text_config=text, eos_token_id=[1, 106], dtype="bfloat16")
    both.architectures = ["Gemma3ForConditionalGeneration"]
    spec = model_spec(both.to_dict())
    alone = model_spec(text.to_dict())
    assert spec.layers == alone.layers
    assert spec.num_parameters == alone.num_parameters
    assert spec.dtype == "bfloat16"
    assert spec.architecture == "Gemma3ForConditionalGeneration"


def test_what_the_whole_model_says_counts_more_than_its_text_part() -> None:
    text = {**SMALL, "eos_token_id": 1, "tie_word_embeddings": False, "dtype": "float32"}
    above = {"eos_token_id": [1, 106], "tie_word_embeddings": True, "torch_dtype": None, "dtype": "float16"}
    spec = model_spec({"model_type": "gemma3", **above, "text_config": text})
    assert (spec.eos_token_ids, spec.tie_word_embeddings, spec.dtype) == ((1, 106), True, "float16")
    spec = model_spec({"model_type": "gemma3", "text_config": text})
    assert (spec.eos_token_ids, spec.tie_word_embeddings, spec.dtype) == ((1,), False, "float32")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "float32"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "float16"),
        ({"dtype": "torch.bfloat16"}, "bfloat16"),
    ],
)
def test_dtype_in_both_spellings(fields: dict[str, Any], expected: str) -> None:
    assert model_spec({**SMALL, **fields, "model_type": "llama"}).dtype == expected


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default"}, 1000),
        ({"rope_type": "linear", "factor": 4.0}, 4000),
        ({"rope_type": "dynamic", "factor": 2.0}, 2000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 125,
            },
            1000,
        ),
    ],
)
def test_scaling_extends_the_context(rope: dict[str, Any], expected: int) -> None:
    config = {**SMALL, "model_type": "llama", "max_position_embeddings": 1000, "rope_scaling": rope}
    assert model_spec(config).max_position == expected


def test_gemma3_counts_its_scaling_already() -> None:
    rope = {"rope_type": "linear", "factor": 8.0}
    config = {**SMALL, "model_type": "gemma3_text", "max_position_embeddings": 1000, "rope_scaling": rope}
    assert model_spec(config).max_position == 1000


def test_soft_capped_attention_asks_for_the_feature() -> None:
    spec = model_spec({**SMALL, "model_type": "gemma3_text", "attn_logit_softcapping": 50.0})
    assert {layer.softcap for layer in spec.layers} == {50.0}
    assert {layer.features for layer in spec.layers} == {frozenset({"softcap"})}


def test_quantization_is_the_method() -> None:
    config = {**SMALL, "model_type": "llama"}
    assert model_spec(config).quantization is None
    assert model_spec({**config, "quantization_config": {"quant_method": "ggml"}}).quantization == "ggml"


@pytest.mark.parametrize("field", [*SMALL, "model_type"])
def test_a_missing_field_is_named(field: str) -> None:
    config = {**SMALL, "model_type": "llama"}
    del config[field]
    with pytest.raises(InvalidValue) as caught:
        model_spec(config)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("model_type", "changes", "field"),
    [
        ("llama", {"hidden_size": 0}, "hidden_size"),
        ("llama", {"hidden_size": "64"}, "hidden_size"),
        ("llama", {"hidden_size": 66}, "hidden_size"),
        ("llama", {"num_hidden_layers": -1}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("llama", {"vocab_size": 1.5}, "vocab_size"),
        ("llama", {"vocab_size": float("nan")}, "vocab_size"),
        ("llama", {"vocab_size": float("inf")}, "vocab_size"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"head_dim": 0}, "head_dim"),
        ("llama", {"head_dim": 15}, "rope_parameters.partial_rotary_factor"),
        ("llama", {"hidden_act": "relu"}, "hidden_act"),
        ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
        ("llama", {"dtype": "float8"}, "dtype"),
        ("llama", {"torch_dtype": "int8"}, "torch_dtype"),
        ("llama", {"eos_token_id": "</s>"}, "eos_token_id"),
        ("llama", {"eos_token_id": [-1]}, "eos_token_id"),
        ("llama", {"max_position_embeddings": 0}, "max_position_embeddings"),
        ("llama", {"rope_scaling": {"type": "magic"}}, "rope_scaling.rope_type"),
        ("llama", {"quantization_config": {}}, "quantization_config"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 8}, "layer_types"),
        ("gemma3_text", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {}, "text_config"),
    ],
)
def test_a_senseless_field_is_named(model_type: str, changes: dict[str, Any], field: str) -> None:
    kv_heads = {"num_key_value_heads": 2} if model_type in ("mistral", "qwen2") else {}
    with pytest.raises(InvalidValue) as caught:
        model_spec({**SMALL, **kv_heads, "model_type": model_type, **changes})
    assert caught.value.field == field


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(InferplaneError) as caught:
        model_spec({"model_type": "mamba"})
    assert caught.value.code == "model.unsupported"
    assert "'mamba'" in caught.value.message
    for model_type in MODELS:
        assert model_type in caught.value.remedy


def test_describing_imports_no_torch() -> None:
    code = "import sys, inferplane.checkpoint.model_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
