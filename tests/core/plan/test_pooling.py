"""Who pools, and how: the flags over the checkpoint's files over the model's kind."""

from __future__ import annotations

from typing import Any

import pytest

from inferplane.checkpoint.model_spec import model_spec
from inferplane.config import Config
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.pooling import PoolingChoice, choose_pooling
from inferplane.plan.settings import Settings
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.pooling import PoolingParams

SIZES: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [
        {"idx": index, "path": "" if kind == "Transformer" else f"{index}_{kind}", "type": f"a.package.{kind}"}
        for index, kind in enumerate(kinds)
    ]


def files(pooling: dict[str, Any] | None = None, *kinds: str, **others: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"modules.json": modules(*(kinds or ("Transformer", "Pooling"))), **others}
    return found if pooling is None else {**found, "1_Pooling/config.json": pooling}


def choose(model_type: str, sentence: dict[str, Any] | None = None, **settings: Any) -> PoolingChoice:
    config = {**SIZES, "model_type": model_type, **settings.pop("config", {})}
    card = CheckpointCard(config=config, sentence_transformers=sentence or {})
    return choose_pooling(Settings(Config.from_flat(settings)), model_spec(config), card)


def record(choice: PoolingChoice) -> dict[str, tuple[str, str]]:
    return {decision.subject: (decision.chosen, decision.source) for decision in choice.decisions}


MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def test_a_decoder_generates() -> None:
    choice = choose("llama")
    assert (choice.pooler, choice.matryoshka) == (None, None)
    assert not choice.model.tie_word_embeddings
    assert record(choice) == {
        "config model.runner": ("generate", "automatic"),
        "config model.convert": ("none", "automatic"),
    }


def test_a_decoder_pools_where_the_user_says_so() -> None:
    choice = choose("llama", runner="pooling")
    assert choice.pooler == PoolingParams(pooling_type="LAST")
    assert choice.model.tie_word_embeddings, "no output matrix"
    assert record(choice) == {
        "config model.runner": ("pooling", "user"),
        "config model.convert": ("embed", "automatic"),
        "pooling": ("LAST, normalized", "automatic"),
    }


def test_an_encoder_pools_by_itself() -> None:
    choice = choose("bert")
    assert choice.pooler == PoolingParams(pooling_type="CLS")
    assert record(choice)["config model.runner"] == ("pooling", "checkpoint")
    assert record(choice)["config model.convert"] == ("none", "automatic")


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (MEAN, "MEAN"),
        ({"pooling_mode_cls_token": True}, "CLS"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "LAST"),
        ({"pooling_mode": "mean", "embedding_dimension": 64}, "MEAN"),
        ({"pooling_mode": ["lasttoken"]}, "LAST"),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_sentence_transformers_own_files_win_over_the_models_kind(
    model_type: str, pooling: dict[str, Any], expected: Any
) -> None:
    choice = choose(model_type, files(pooling))
    assert choice.pooler == PoolingParams(pooling_type=expected, normalize=False), "there is no Normalize module"
    assert record(choice)["pooling"] == (f"{expected}, not normalized", "checkpoint")
    normalized = choose(model_type, files(pooling, "Transformer", "Pooling", "Normalize"))
    assert normalized.pooler == PoolingParams(pooling_type=expected, normalize=True)


def test_the_users_own_word_wins_over_both() -> None:
    said = {"pooling_type": "LAST", "use_activation": True, "dimensions": 8, "task": "embed"}
    choice = choose("bert", files(MEAN), pooler_config=said)
    assert choice.pooler == PoolingParams(pooling_type="LAST", normalize=True, dimensions=8)
    assert record(choice)["pooling"] == ("LAST, normalized", "user")
    half = choose("bert", files(MEAN), pooler_config={"normalize": True})
    assert half.pooler == PoolingParams(pooling_type="MEAN", normalize=True)


def test_generating_can_be_insisted_on() -> None:
    choice = choose("llama", files(MEAN), runner="generate")
    assert choice.pooler is None
    assert choice.model.max_position == 512


@pytest.mark.parametrize(
    ("model_type", "settings", "field", "text"),
    [
        ("bert", {"runner": "generate"}, "runner", "encoder"),
        ("llama", {"convert": "embed"}, "convert", "--runner pooling"),
        ("llama", {"runner": "pooling", "convert": "none"}, "convert", "--convert embed"),
        ("llama", {"pooler_config": {"pooling_type": "MEAN"}}, "pooler_config", "--runner pooling"),
        ("bert", {"pooler_config": {"pooling_type": "ALL"}}, "pooler_config", "CLS, LAST, MEAN"),
        ("bert", {"pooler_config": {"pooling_type": []}}, "pooler_config", "CLS, LAST, MEAN"),
        ("bert", {"pooler_config": {"softmax": True}}, "pooler_config", "softmax"),
        ("bert", {"pooler_config": {"task": "classify"}}, "pooler_config", "embed"),
        ("bert", {"pooler_config": {"normalize": 1}}, "pooler_config", "true or false"),
        ("bert", {"pooler_config": {"normalize": True, "use_activation": False}}, "pooler_config", "contradicts"),
        ("bert", {"pooler_config": {"dimensions": 65}}, "pooler_config", "64"),
        ("bert", {"pooler_config": {"dimensions": 0}}, "pooler_config", "at least 1"),
        ("bert", {"config": {"matryoshka_dimensions": [128]}}, "matryoshka_dimensions", "64"),
    ],
)
def test_contradictions_name_the_flag(model_type: str, settings: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        choose(model_type, **settings)
    assert caught.value.field == field
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode": "weightedmean"},
    ],
)
def test_another_way_to_pool_is_refused_unless_the_user_names_one(pooling: dict[str, Any]) -> None:
    with pytest.raises(InferplaneError, match=r"1_Pooling/config\.json"):
        choose("bert", files(pooling))
    choice = choose("bert", files(pooling), pooler_config={"pooling_type": "MEAN"})
    assert choice.pooler == PoolingParams(pooling_type="MEAN", normalize=False)


def test_a_module_that_would_change_the_vectors_is_refused() -> None:
    with pytest.raises(InferplaneError, match="'Dense'"):
        choose("bert", files(MEAN, "Transformer", "Pooling", "Dense"))


def test_a_decoder_that_looks_both_ways_is_refused() -> None:
    with pytest.raises(InferplaneError, match="is_causal=false"):
        choose("qwen2", runner="pooling", config={"is_causal": False, "num_key_value_heads": 4})
    assert choose("qwen2", config={"is_causal": False, "num_key_value_heads": 4}).pooler is None


def test_the_longest_text_is_the_checkpoints() -> None:
    sentence = files(MEAN, sentence_roberta_config={"max_seq_length": 7})
    assert choose("bert", sentence).model.max_position == 512, "only the file of that name counts"
    sentence = files(MEAN) | {"sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": True}}
    choice = choose("bert", sentence)
    assert choice.model.max_position == 128
    assert choice.lower_case
    longer = files(MEAN) | {"sentence_bert_config.json": {"max_seq_length": 1024}}
    assert choose("bert", longer).model.max_position == 512


@pytest.mark.parametrize(
    ("config", "pooler", "expected"),
    [
        ({}, {}, None),
        ({"is_matryoshka": True}, {}, ()),
        ({"matryoshka_dimensions": [16, 32, 64]}, {}, (16, 32, 64)),
        ({"matryoshka_dimensions": [16, 32, 64]}, {"dimensions": 32}, (16, 32)),
    ],
)
def test_matryoshka_is_what_the_config_says(config: dict[str, Any], pooler: dict[str, Any], expected: Any) -> None:
    assert choose("bert", config=config, pooler_config=pooler).matryoshka == expected
