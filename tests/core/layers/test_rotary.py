"""Rotary embeddings against transformers' own, in both spellings of the config, and the errors of bad ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inferplane.layers.rope_parameters import rope_parameters
from inferplane.layers.rotary import RotaryEmbedding
from inferplane.models.describe import rope_of
from inferplane_api.errors import InvalidValue

CPU = torch.device("cpu")
BASE: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "llama3-no-original": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
    "yarn": YARN,
    "yarn-no-original": {"rope_type": "yarn", "factor": 4.0},
    "yarn-attention-factor": {**YARN, "attention_factor": 1.5},
    "yarn-mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn-betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-not-truncated": {**YARN, "truncate": False},
    "yarn-no-ramp": {**YARN, "beta_fast": 1e-9, "beta_slow": 1e-9},
}
POSITIONS = torch.tensor([0, 1, 2, 3, 17, 63, 64, 65, 128, 200, 255])


def half(x: torch.Tensor) -> torch.Tensor:
    """transformers repeats the angles for both halves of a head."""
    first, second = x[0].chunk(2, dim=-1)
    assert torch.equal(first, second)
    return first


def check(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, half(y), rtol=0, atol=2e-5)


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "type"])
@pytest.mark.parametrize("name", SCALINGS)
def test_equals_transformers_in_every_spelling(name: str, spelling: str) -> None:
    scaling, theta = SCALINGS[name], 50_000.0
    reference = transformers.LlamaConfig(**BASE, rope_parameters={**scaling, "rope_theta": theta})
    expected = LlamaRotaryEmbedding(reference)(torch.zeros(1), POSITIONS[None])
    config = {**BASE, "model_type": "llama"}
    if spelling == "rope_parameters":
        config["rope_parameters"] = {**scaling, "rope_theta": theta}
    else:
        old = dict(scaling)
        if spelling == "type":
            old["type"] = old.pop("rope_type")
        config |= {"rope_theta": theta, "rope_scaling": old}
    before = copy.deepcopy(config)
    found = RotaryEmbedding(rope_of(config), CPU)(POSITIONS)
    check(found, expected)
    assert config == before


@pytest.mark.parametrize("config", [{}, {"rope_theta": 123.0}, {"rope_scaling": None, "rope_theta": 77.0}])
def test_plain_configs_equal_transformers(config: dict[str, Any]) -> None:
    expected = LlamaRotaryEmbedding(transformers.LlamaConfig(**BASE, **config))(torch.zeros(1), POSITIONS[None])
    check(RotaryEmbedding(rope_of({**BASE, **config, "model_type": "llama"}), CPU)(POSITIONS), expected)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", ["default", "linear", "llama3", "yarn"])
def test_partly_rotated_heads_equal_transformers(name: str, inside: bool) -> None:
    """GLM rotates half of a head; the factor stands in the parameters (transformers 5) or beside them."""
    reference = transformers.GlmConfig(
        **BASE, head_dim=32, rope_parameters={**SCALINGS[name], "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    )
    expected = GlmRotaryEmbedding(reference)(torch.zeros(1), POSITIONS[None])
    factor = {"partial_rotary_factor": 0.5}
    config = {"rope_parameters": {**SCALINGS[name], **(factor if inside else {})}, **({} if inside else factor)}
    parameters = rope_parameters(config, head_size=32, max_position=256)
    assert parameters.dim == 16
    check(RotaryEmbedding(parameters, CPU)(POSITIONS), expected)


def test_original_length_beside_the_parameters_wins() -> None:
    """As Phi 3 writes it."""
    config = transformers.LlamaConfig(**BASE, rope_parameters={**YARN, "rope_theta": 10_000.0})
    config.original_max_position_embeddings = 32
    config.standardize_rope_params()
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), POSITIONS[None])
    ours = {**BASE, "model_type": "llama", "rope_parameters": YARN, "original_max_position_embeddings": 32}
    check(RotaryEmbedding(rope_of(ours), CPU)(POSITIONS), expected)


@pytest.mark.parametrize("style", ["nested", "old", "old-scaled", "absent"])
@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
def test_gemma3_has_one_per_layer_type(style: str, layer_type: str) -> None:
    base = {**BASE, "num_hidden_layers": 6, "head_dim": 32}
    added: dict[str, Any] = {
        "nested": {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
            }
        },
        "old": {"rope_theta": 5e5, "rope_local_base_freq": 7e3},
        "old-scaled": {
            "rope_theta": 5e5,
            "rope_local_base_freq": 7e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "absent": {},
    }[style]
    reference = transformers.Gemma3TextConfig(**copy.deepcopy({**base, **added}))
    expected = Gemma3RotaryEmbedding(reference)(torch.zeros(1), POSITIONS[None], layer_type)
    config = {**base, **added, "model_type": "gemma3_text"}
    check(RotaryEmbedding(rope_of(config, layer_type), CPU)(POSITIONS), expected)


def test_dynamic_equals_transformers_while_decoding() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = {**BASE, "max_position_embeddings": 32}
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(**config, rope_parameters=scaling))
    ours = RotaryEmbedding(rope_of({**config, "model_type": "llama", "rope_parameters": scaling}), CPU)
    whole = ours(torch.arange(64))
    check(ours(torch.arange(20)), theirs(torch.zeros(1), torch.arange(20)[None]))
    for position in range(20, 64):
        one = torch.tensor([position])
        check(ours(one), theirs(torch.zeros(1), one[None]))
    unscaled = RotaryEmbedding(rope_of({**config, "model_type": "llama"}), CPU)(torch.arange(64))
    assert torch.equal(unscaled[0][:32], whole[0][:32])
    assert not torch.allclose(unscaled[0][40:], whole[0][40:], atol=1e-3)


@pytest.mark.parametrize("name", SCALINGS)
def test_a_position_has_the_same_bits_in_any_company(name: str) -> None:
    config = {**BASE, "max_position_embeddings": 32, "head_dim": 20, "model_type": "llama"}
    rotary = RotaryEmbedding(rope_of({**config, "rope_parameters": SCALINGS[name]}), CPU)
    whole = rotary(torch.arange(64))
    for positions in (torch.tensor([41]), torch.tensor([41, 7, 63]), torch.arange(13, 50)):
        for part, x in zip(rotary(positions), whole, strict=True):
            assert torch.equal(part, x[positions])


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_parameters": {"rope_type": "su"}}, "rope_parameters.rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "rope_scaling.low_freq_factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, "rope_parameters.partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 2.0}}, "rope_parameters.partial_rotary_factor"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        rope_parameters(config, head_size=32, max_position=256)
    assert caught.value.field == field
