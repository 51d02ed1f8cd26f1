"""`LLM.embed` of decoders: what transformers' hidden states give, however the engine computes them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from inferplane import LLM
from inferplane.errors import ContextTooLong, InferplaneError, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LENGTHS = (1, 5, 5, 33, 100, 2, 1, 48)
PICK = {"CLS": lambda states: states[0], "LAST": lambda states: states[-1], "MEAN": lambda states: states.mean(0)}


def prompts() -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(3, 300, length).tolist() for length in LENGTHS]


def as_prompts(ids: list[list[int]]) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": prompt} for prompt in ids]


def vectors(outputs: Any) -> np.ndarray[Any, Any]:
    return np.array([output.outputs.embedding for output in outputs])


@pytest.fixture(scope="module")
def truth() -> Callable[[Path, str], np.ndarray[Any, Any]]:
    """`truth(folder, pooling_type)`: transformers in float32, one prompt at a time, normalized."""
    from transformers import AutoModel

    models: dict[Path, list[Any]] = {}

    def compute(folder: Path, pooling_type: str) -> np.ndarray[Any, Any]:
        if folder not in models:
            model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
            with torch.no_grad():
                models[folder] = [model(torch.tensor([ids])).last_hidden_state[0].double() for ids in prompts()]
        found = torch.stack([PICK[pooling_type](states) for states in models[folder]])
        return (found / found.norm(dim=-1, keepdim=True)).numpy()

    return compute


CHUNKED: dict[str, Any] = {"platform": "reference", "max_num_batched_tokens": 16, "max_num_seqs": 3, "block_size": 4}
BUCKETS: dict[str, Any] = {"platform": "examplechip", "platform_option": {"devices": "1"}}
"""Static shapes."""


@pytest.mark.parametrize(
    ("pooling_type", "settings"),
    [("CLS", CHUNKED), ("LAST", {}), ("LAST", CHUNKED), ("MEAN", {}), ("MEAN", CHUNKED), ("MEAN", BUCKETS)],
)
def test_a_decoder_gives_what_transformers_gives(
    tiny_llama_dir: Path, truth: Any, pooling_type: str, settings: dict[str, Any]
) -> None:
    pooler = {"pooling_type": pooling_type}
    expected = truth(tiny_llama_dir, pooling_type)
    with LLM(str(tiny_llama_dir), dtype="float32", runner="pooling", pooler_config=pooler, **settings) as llm:
        first = llm.embed(as_prompts(prompts()))
        again = llm.embed(as_prompts(prompts()))
        alone = [llm.embed({"prompt_token_ids": ids, "cache_salt": "alone"})[0] for ids in prompts()]
    for outputs in (first, again, alone):
        assert vectors(outputs) == pytest.approx(expected, abs=1e-5)
        assert [output.prompt_token_ids for output in outputs] == prompts()
    reuse = pooling_type == "LAST" and settings.get("platform") != "examplechip"
    cached = [output.num_cached_tokens for output in again]
    assert (max(cached) > 90) if reuse else (cached == [0] * len(LENGTHS))


def test_windows_and_full_layers(tiny_gemma3_dir: Path, truth: Any) -> None:
    with LLM(
        str(tiny_gemma3_dir), dtype="float32", runner="pooling", max_num_batched_tokens=24, block_size=4,
        pooler_config={"pooling_type": "MEAN"},
    ) as llm:  # fmt: skip
        assert vectors(llm.embed(as_prompts(prompts()))) == pytest.approx(truth(tiny_gemma3_dir, "MEAN"), abs=1e-5)


def test_a_bare_decoder_without_an_output_matrix(tiny_llama_dir: Path, truth: Any, tmp_path: Path) -> None:
    """What `AutoModel` saves: no "model." before the names, and no lm_head."""
    from transformers import AutoModel

    AutoModel.from_pretrained(tiny_llama_dir).save_pretrained(tmp_path)
    with LLM(str(tmp_path), dtype="float32", runner="pooling") as llm:
        assert vectors(llm.embed(as_prompts(prompts()))) == pytest.approx(truth(tiny_llama_dir, "LAST"), abs=1e-5)


@pytest.fixture(scope="module")
def embedder(tiny_llama_dir: Path) -> Any:
    overrides = {"matryoshka_dimensions": [8, 64]}
    with LLM(str(tiny_llama_dir), dtype="float32", runner="pooling", hf_overrides=overrides, max_model_len=40) as llm:
        yield llm


def test_texts_and_tokens(embedder: LLM) -> None:
    texts = ["the sand and the sea", "on", "in the end"]
    outputs = embedder.embed(texts)
    ids = [output.prompt_token_ids for output in outputs]
    assert ids == [embedder.tokenizer.encode(text) for text in texts]  # type: ignore[union-attr]
    assert [output.prompt for output in outputs] == texts
    assert all(output.finished for output in outputs)
    mixed = embedder.embed([texts[0], ids[1], {"prompt": texts[2]}])
    assert vectors(mixed) == pytest.approx(vectors(outputs), abs=1e-6)
    assert vectors(embedder.embed(ids[0])) == pytest.approx(vectors(outputs[:1]), abs=1e-6)
    assert embedder.embed([]) == []


def test_fewer_dimensions_are_the_first_ones_normalized_again(embedder: LLM) -> None:
    (whole,), (raw,) = (vectors(embedder.embed("the end", normalize=normalize)) for normalize in (True, False))
    (few,), (raw_few,) = (
        vectors(embedder.embed("the end", dimensions=8, normalize=normalize)) for normalize in (True, False)
    )
    assert whole == pytest.approx(raw / np.linalg.norm(raw), abs=1e-6)
    assert raw_few == pytest.approx(raw[:8], abs=1e-6)
    assert few == pytest.approx(raw[:8] / np.linalg.norm(raw[:8]), abs=1e-6)
    assert embedder.embed("the end", dimensions=8)[0].outputs.hidden_size == 8
    with pytest.raises(InvalidValue, match="8, 64"):
        embedder.embed("the end", dimensions=9)


def test_long_prompts(embedder: LLM) -> None:
    with pytest.raises(ContextTooLong, match=r"41 tokens.*40 tokens"):
        embedder.embed({"prompt_token_ids": [5] * 41})
    cut = embedder.embed([{"prompt_token_ids": list(range(3, 50))}, "the " * 100], truncate_prompt_tokens=-1)
    assert cut[0].prompt_token_ids == list(range(3, 43))
    assert len(cut[1].prompt_token_ids) == 40
    with pytest.raises(InvalidValue, match="truncate_prompt_tokens"):
        embedder.embed("a", truncate_prompt_tokens=0)


def test_it_does_not_generate(embedder: LLM) -> None:
    with pytest.raises(InferplaneError, match="embeds") as caught:
        embedder.generate("the")
    assert "runner='generate'" in caught.value.remedy
    with pytest.raises(InferplaneError, match="embeds"):
        embedder.chat([{"role": "user", "content": "the"}])


def test_a_failing_prompt_ends_the_call_and_the_next_one_works(embedder: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("inferplane.engine.outcome.math.isfinite", lambda value: False)
        with pytest.raises(InferplaneError, match="not finite"):
            embedder.embed(["the", "on"])
    assert len(embedder.embed(["the", "on"])) == 2
    assert embedder.stats().num_requests_running == 0


def test_a_generating_model_does_not_embed(tiny_llama_dir: Path) -> None:
    with LLM(str(tiny_llama_dir), dtype="float32") as llm, pytest.raises(InferplaneError) as caught:
        llm.embed("the")
    assert "runner='pooling'" in caught.value.remedy


def test_a_folder_of_sentence_transformers_is_an_embedder_by_itself(
    tiny_llama_dir: Path, truth: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "sentences"
    shutil.copytree(tiny_llama_dir, folder)
    (folder / "modules.json").write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"},'
        '{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},'
        '{"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]'
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 100, "do_lower_case": true}')
    with LLM(str(folder), dtype="float32") as llm:
        assert llm.plan.limits.max_model_len == 100
        assert vectors(llm.embed(as_prompts(prompts()))) == pytest.approx(truth(tiny_llama_dir, "MEAN"), abs=1e-5)
        assert llm.embed("THE End")[0].prompt_token_ids == llm.embed("the end")[0].prompt_token_ids
    with LLM(str(folder), dtype="float32", runner="generate") as llm:
        assert len(llm.generate("the")[0].outputs[0].token_ids) > 0
