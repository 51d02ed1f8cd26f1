"""Our models against transformers, in float32, on tiny random checkpoints of every variant of every family."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from inferplane.layers.layer import Layer
from inferplane.layers.linear import Linear
from inferplane_api.errors import InferplaneError

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
HYBRID = {"num_hidden_layers": 4, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-all-heads": ("Llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1, "rms_norm_eps": 1e-3}),
    "llama-wide-heads": ("Llama", {"head_dim": 24}),
    "llama-gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama-theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500_000.0}}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    # Scaling starts at position 40, in the middle of the generated tokens
    "llama-dynamic": (
        "Llama",
        {"max_position_embeddings": 40, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
    ),
    "llama-yarn": ("Llama", {"rope_parameters": YARN_ROPE}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 8, "head_dim": 32}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": {**YARN_ROPE, "rope_theta": 1_000_000.0}}),
    "qwen2-windows": (
        "Qwen2",
        {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ),
    "qwen2-layer-types": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-bias": ("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3", {**HYBRID, "tie_word_embeddings": True}),
    "gemma3-pattern": ("Gemma3", {**HYBRID, "sliding_window_pattern": 2}),
    "gemma3-linear": (
        "Gemma3",
        {
            **HYBRID,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
            },
        },
    ),
    "gemma3-final-softcap": ("Gemma3", {**HYBRID, "final_logit_softcapping": 3.0}),
}
_CLASSES = {
    name: (getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM"))
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
}
_CLASSES["Gemma3"] = (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM)

NUM_PROMPT, NUM_GENERATED = 30, 24


def make_model(family: str, overrides: dict[str, Any], seed: int) -> transformers.PreTrainedModel:
    """A random model whose attention is far from uniform and whose norms and biases are not trivial."""
    config_class, model_class = _CLASSES[family]
    torch.manual_seed(seed)
    config = config_class(**{**SMALL, **overrides}, attn_implementation="eager")
    model = model_class(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in name and config.tie_word_embeddings:
                # small beside what the blocks add: otherwise the likeliest next token is always the last one
                parameter.copy_(torch.randn_like(parameter) * (0.01 if family == "Gemma3" else 0.1))
            else:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[1] ** -0.5)
    return model


@torch.no_grad()
def greedy(model: transformers.PreTrainedModel, prompt: list[int], num_tokens: int) -> tuple[list[int], torch.Tensor]:
    """transformers with its cache, token after token: the tokens, and the logits of all positions."""
    cache = transformers.DynamicCache(config=model.config)
    logits = [model(torch.tensor([prompt]), cache=cache, use_cache=True).logits[0]]
    tokens: list[int] = []
    while True:
        tokens.append(int(logits[-1][-1].argmax()))
        if len(tokens) == num_tokens:
            return tokens, torch.cat(logits)
        logits.append(model(torch.tensor([tokens[-1:]]), cache=cache, use_cache=True).logits[0])


def run(harness: Any, prompt: list[int], chunks: list[int], num_tokens: int) -> tuple[list[int], torch.Tensor]:
    """Ours: the prompt in chunks, then token after token."""
    logits, done = [], 0
    for chunk in chunks:
        logits.append(harness.forward(prompt[done : done + chunk]))
        done += chunk
    assert done == len(prompt)
    tokens: list[int] = []
    while True:
        tokens.append(int(logits[-1][-1].argmax()))
        if len(tokens) == num_tokens:
            return tokens, torch.cat(logits)
        logits.append(harness.forward(tokens[-1:]))


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens_equal_transformers(case: str, tmp_path: Any, paged_harness: Any) -> None:
    prompt = torch.randint(3, 97, (NUM_PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
    for seed in range(20):
        model = make_model(*CASES[case], seed)
        expected_tokens, expected_logits = greedy(model, prompt, NUM_GENERATED)
        if len(set(expected_tokens)) > 4:
            break
    else:
        pytest.fail("every model repeats itself, which proves little")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    for chunks in ([NUM_PROMPT], [1, 12, 7, 10]):
        tokens, logits = run(paged_harness(config, tensors), prompt, chunks, NUM_GENERATED)
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
        assert tokens == expected_tokens


def saved(model: transformers.PreTrainedModel, path: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    model.save_pretrained(path)
    return json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


@torch.no_grad()
def all_logits(model: transformers.PreTrainedModel, prompt: list[int], **arguments: Any) -> torch.Tensor:
    return model(torch.tensor([prompt]), use_cache=False, **arguments).logits[0].float()


PROMPT = torch.randint(3, 97, (NUM_PROMPT,), generator=torch.Generator().manual_seed(2)).tolist()


def before_transformers_5(config: dict[str, Any]) -> dict[str, Any]:
    """The same config as older releases wrote it."""
    config = dict(config)
    rope = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        config.pop("layer_types")
        config["sliding_window_pattern"] = 2
    rope = dict(rope)
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    return config


@pytest.mark.parametrize(
    "case", ["llama-theta", "llama-llama3", "llama-linear", "llama-yarn", "qwen2-yarn", "gemma3-linear"]
)
def test_configs_of_older_releases_mean_the_same(case: str, tmp_path: Any, paged_harness: Any) -> None:
    model = make_model(*CASES[case], 0)
    config, tensors = saved(model, tmp_path)
    old = before_transformers_5(config)
    assert "rope_parameters" not in old
    logits = paged_harness(old, tensors).forward(PROMPT)
    torch.testing.assert_close(logits, all_logits(model, PROMPT), rtol=1e-4, atol=1e-4)


def vision_and_text() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    vision = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = transformers.Gemma3TextConfig(**{**SMALL, **HYBRID, "sliding_window_pattern": 2})
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, attn_implementation="eager"
    )
    return transformers.Gemma3ForConditionalGeneration(config).eval().float()


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_text_model_of_a_gemma3_with_vision(in_memory: bool, tmp_path: Any, paged_harness: Any) -> None:
    """Files keep the tensor names of older releases; `state_dict` has those of newer ones."""
    model = vision_and_text()
    config, tensors = saved(model, tmp_path)
    if in_memory:
        tensors = model.state_dict()
    prefix = "model.language_model." if in_memory else "language_model.model."
    assert f"{prefix}embed_tokens.weight" in tensors
    logits = paged_harness(config, tensors).forward(PROMPT)
    expected = all_logits(model, PROMPT, token_type_ids=torch.zeros(1, NUM_PROMPT, dtype=torch.long))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InferplaneError, match="has unexpected audio"):
        paged_harness(config, {**tensors, "audio.weight": torch.zeros(1)})


def test_attention_soft_cap(tmp_path: Any, paged_harness: Any) -> None:
    """transformers' Gemma 3 has the cap in its attention function but never hands the config's value to it."""
    family, overrides = CASES["gemma3"]
    model = make_model(family, {**overrides, "attn_logit_softcapping": 2.0}, 0)
    config, tensors = saved(model, tmp_path)
    logits = paged_harness(config, tensors).forward(PROMPT)
    torch.testing.assert_close(logits, all_logits(model, PROMPT, softcap=2.0), rtol=1e-4, atol=1e-4)
    assert (logits - all_logits(model, PROMPT)).abs().max() > 1e-2


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "gemma3"])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(case: str, tmp_path: Any, paged_harness: Any) -> None:
    model = make_model(*CASES[case], 0)
    # weights that bfloat16 holds exactly: what is compared is arithmetic
    model = model.bfloat16().float()
    config, tensors = saved(model, tmp_path)
    truth = all_logits(model, PROMPT)
    theirs = (all_logits(model.bfloat16(), PROMPT) - truth).pow(2).mean().sqrt()
    ours = (paged_harness(config, tensors, torch.bfloat16).forward(PROMPT) - truth).pow(2).mean().sqrt()
    assert 0 < ours < 1.25 * theirs


@pytest.mark.parametrize("family", _CLASSES)
def test_stacked_and_sharded_parameters_are_declared_as_they_are(
    family: str, tmp_path: Any, paged_harness: Any
) -> None:
    overrides = HYBRID if family == "Gemma3" else {}
    model = paged_harness(*saved(make_model(family, overrides, 0), tmp_path)).model
    declared = {*model.SHARDED}
    for layer in model.walk():
        for attribute, part in vars(layer).items():
            names = [name.split(".")[-2] for name in part.shapes()] if isinstance(part, Layer) else []
            if isinstance(part, Linear):
                assert tuple(dict.fromkeys(names)) == model.STACKED.get(attribute, (attribute,))
                assert attribute in model.SHARDED
            if attribute in model.SHARDED:
                declared.discard(attribute)
    assert not declared, "declared, but not there"
