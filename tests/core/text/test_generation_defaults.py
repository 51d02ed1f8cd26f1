"""The layers of sampling defaults: request over override over file over API, for each API."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from inferplane.errors import InvalidValue
from inferplane.text.generation_defaults import SamplingDefaults
from inferplane_api import SamplingParams
from inferplane_api.checkpoint import CheckpointCard

REQUEST = {"temperature": 0.1, "top_p": 0.11, "top_k": 1, "min_p": 0.01, "repetition_penalty": 1.1, "max_tokens": 10}
OVERRIDE = {
    "temperature": 0.2,
    "top_p": 0.22,
    "top_k": 2,
    "min_p": 0.02,
    "repetition_penalty": 1.2,
    "max_new_tokens": 20,
}
FILE = {"temperature": 0.3, "top_p": 0.33, "top_k": 3, "min_p": 0.03, "repetition_penalty": 1.3, "max_new_tokens": 30}
API: dict[str, dict[str, Any]] = {
    "completions": {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 16,
    },
    "chat": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": None},
}
FIELDS = list(REQUEST)


def in_file(field: str) -> str:
    return "max_new_tokens" if field == "max_tokens" else field


def resolved(defaults: SamplingDefaults, fields: dict[str, Any], api: Any) -> dict[str, Any]:
    params = SamplingParams(**defaults.apply(fields, api))
    return {field: getattr(params, field) for field in FIELDS}


@pytest.mark.parametrize("api", API)
@pytest.mark.parametrize("layers", list(itertools.product([True, False], repeat=3)), ids=str)
def test_order_of_layers(api: str, layers: tuple[bool, bool, bool]) -> None:
    request, override, file = layers
    card = CheckpointCard(config={}, generation_config=FILE if file else {})
    defaults = SamplingDefaults.from_card(card, "auto", OVERRIDE if override else {})
    for field in FIELDS:
        if request:
            expected = REQUEST[field]
        elif override:
            expected = OVERRIDE[in_file(field)]
        elif file:
            expected = FILE[in_file(field)]
        else:
            expected = API[api][field]
        given: dict[str, Any] = {field: REQUEST[field]} if request else {}
        assert resolved(defaults, given, api)[field] == expected, field


@pytest.mark.parametrize("api", API)
@pytest.mark.parametrize("layer", ["override", "file", "API"])
def test_a_field_that_is_null_is_not_given(api: str, layer: str) -> None:
    card = CheckpointCard(config={}, generation_config={**FILE, "top_p": None} if layer != "API" else {})
    defaults = SamplingDefaults.from_card(card, "auto", {"top_k": 2} if layer == "override" else {})
    values = resolved(defaults, dict.fromkeys(FIELDS), api)
    assert values["top_p"] == 1.0
    assert values["top_k"] == {"override": 2, "file": 3, "API": 0}[layer]


@pytest.mark.parametrize("api", API)
def test_vllm_ignores_the_file_but_its_end_tokens(api: str) -> None:
    card = CheckpointCard(config={"eos_token_id": 2}, generation_config={**FILE, "eos_token_id": [2, 7]})
    defaults = SamplingDefaults.from_card(card, "vllm", {"top_k": 5})
    assert resolved(defaults, {}, api) == {**API[api], "top_k": 5}
    assert defaults.eos_token_ids == (2, 7)


@pytest.mark.parametrize("api", API)
def test_a_folder_replaces_the_model_s_file(api: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": 9}))
    card = CheckpointCard(config={"eos_token_id": [1, 2]}, generation_config={**FILE, "eos_token_id": 7})
    defaults = SamplingDefaults.from_card(card, str(tmp_path))
    assert resolved(defaults, {}, api) == {**API[api], "temperature": 0.5}
    assert defaults.eos_token_ids == (1, 2, 7, 9)


def test_without_an_api_max_tokens_is_left_out() -> None:
    assert SamplingDefaults.from_card(CheckpointCard(config={})).apply({"n": 2, "top_p": None}) == {"n": 2}


def test_fields_that_no_layer_knows_pass_through() -> None:
    defaults = SamplingDefaults.from_card(CheckpointCard(config={}, generation_config={"do_sample": True}))
    assert defaults.apply({"stop": ("a",), "seed": 0}, "chat") == {"max_tokens": None, "stop": ("a",), "seed": 0}


@pytest.mark.parametrize(
    ("setting", "override", "match"),
    [
        ("nowhere", {}, "cannot read"),
        ("auto", {"temprature": 1.0}, "has no effect"),
        ("auto", {"temperature": 3.0}, "between 0 and 2"),
        ("auto", {"temperature": "hot"}, "wrong type"),
    ],
)
def test_wrong_settings_are_named(setting: str, override: dict[str, Any], match: str, tmp_path: Path) -> None:
    setting = str(tmp_path / setting) if setting == "nowhere" else setting
    with pytest.raises(InvalidValue, match=match) as caught:
        SamplingDefaults.from_card(CheckpointCard(config={}), setting, override)
    assert caught.value.field in ("generation_config", "override_generation_config")


def test_a_file_that_is_wrong_is_named_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="--generation-config vllm"):
        SamplingDefaults.from_card(CheckpointCard(config={}, generation_config={"top_p": 2.0}))
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(InvalidValue, match="JSON object"):
        SamplingDefaults.from_card(CheckpointCard(config={}), str(tmp_path))


def test_the_line_for_the_log_names_values_and_their_source() -> None:
    card = CheckpointCard(config={"eos_token_id": 2}, generation_config={"temperature": 0.6, "top_k": 20})
    line = SamplingDefaults.from_card(card, "auto", {"top_k": 5}).describe()
    assert "\n" not in line
    for part in ("generation_config.json", "temperature=0.6", "top_k=5", "overridden: top_k", "[2]"):
        assert part in line
