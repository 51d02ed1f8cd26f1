"""BERT encoders against transformers in float32: tiny random ones of every variant, and MiniLM with its own pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from inferplane import LLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
LENGTHS = (1, 7, 7, 40, 3, 1, 22, 7, 39)

TEXTS = [
    "hello world",
    "",
    "The lighthouse keeper wrote in his log every evening; he noted the wind and the ships that passed.",
    "naïve café — ÜBER Straße, 日本語 テスト, مرحبا بالعالم, emoji 🙂🙂, e\u0301 combined",
    "unaffable antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "[CLS] a [MASK] in the text [SEP]",
    "tabs\tand\nnewlines   and\u00a0spaces\u200b",
    "x" * 120,
    "The cat sat on the mat. " * 35,
]


@pytest.fixture(scope="module")
def make_bert(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """`make_bert(model_class="BertModel", **config) -> (folder, the encoder)`, random and in float32."""

    def make(model_class: str = "BertModel", **overrides: Any) -> tuple[Path, Any]:
        torch.manual_seed(7)
        config = transformers.BertConfig(**{**SMALL, **overrides})
        model = getattr(transformers, model_class)(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "LayerNorm" in name:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        folder = tmp_path_factory.mktemp("bert")
        model.save_pretrained(folder)
        return folder, getattr(model, "bert", model)

    return make


def prompts() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, SMALL["vocab_size"], length).tolist() for length in LENGTHS]


@torch.no_grad()
def states(model: Any, ids: list[int]) -> torch.Tensor:
    """transformers, one text at a time: [T, hidden]."""
    return model(torch.tensor([ids])).last_hidden_state[0]


@pytest.mark.parametrize(
    ("platform", "model_class", "overrides"),
    [
        ("cpu", "BertModel", {}),
        ("reference", "BertModel", {}),
        ("examplechip", "BertModel", {}),
        ("cpu", "BertModel", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "type_vocab_size": 1}),
        ("cpu", "BertForMaskedLM", {}),
        ("cpu", "BertForSequenceClassification", {"num_labels": 3}),
    ],
)
def test_hidden_states_are_those_of_transformers(
    make_bert: Callable[..., tuple[Path, Any]], platform: str, model_class: str, overrides: dict[str, Any]
) -> None:
    folder, model = make_bert(model_class, **overrides)
    ids = prompts()
    settings: dict[str, Any] = {"pooler_config": {"pooling_type": "MEAN", "normalize": False}}
    if platform == "examplechip":
        settings["platform_option"] = {"devices": "1"}
    with LLM(str(folder), dtype="float32", platform=platform, max_num_batched_tokens=64, **settings) as llm:
        outputs = llm.embed([{"prompt_token_ids": prompt} for prompt in ids])
        assert llm.stats().num_steps < len(ids), "several rows a step"
    for prompt, output in zip(ids, outputs, strict=True):
        expected = states(model, prompt).mean(0).numpy()
        assert output.outputs.embedding == pytest.approx(expected, abs=2e-5)


def test_by_default_it_is_the_first_token_normalized(make_bert: Callable[..., tuple[Path, Any]]) -> None:
    folder, model = make_bert()
    (prompt,) = prompts()[3:4]
    with LLM(str(folder), dtype="float32") as llm:
        (output,) = llm.embed(prompt)
    first = states(model, prompt)[0]
    assert output.outputs.embedding == pytest.approx((first / first.norm()).numpy(), abs=1e-5)


def test_random_weights_of_a_bert(make_bert: Callable[..., tuple[Path, Any]]) -> None:
    folder, _ = make_bert()
    with LLM(str(folder), dtype="float32", load_format="dummy") as llm:
        outputs = llm.embed([{"prompt_token_ids": prompt} for prompt in prompts()])
    vectors = np.array([output.outputs.embedding for output in outputs])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.models
def test_minilm_is_what_sentence_transformers_computes(minilm_path: Path) -> None:
    """Its semantics, written out: the encoder's states, their mean over the text's tokens, divided by the length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path)
    model = transformers.BertModel.from_pretrained(minilm_path, dtype=torch.float32).eval()
    with LLM(str(minilm_path), dtype="float32") as llm:
        outputs = llm.embed(TEXTS, truncate_prompt_tokens=-1)
        assert llm.plan.limits.max_model_len == 256, "sentence_bert_config.json says so"
    for text, output in zip(TEXTS, outputs, strict=True):
        ids = tokenizer(text, truncation=True, max_length=256, padding=False)["input_ids"]
        assert output.prompt_token_ids == ids
        mean = states(model, ids).double().mean(0)
        assert output.outputs.embedding == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)


@pytest.mark.models
def test_minilm_knows_what_is_alike(minilm_path: Path) -> None:
    texts = ["A cat is asleep on the sofa.", "A kitten naps on the couch.", "The central bank raised its rates."]
    with LLM(str(minilm_path)) as llm:
        cat, kitten, bank = (np.array(output.outputs.embedding) for output in llm.embed(texts))
    assert cat @ kitten > 0.6
    assert max(cat @ bank, kitten @ bank) < 0.2
