"""Beam search offline against transformers' own, in float32: tokens, scores and order of all returned sequences."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from inferplane import LLM
from inferplane.client.beam_search import BeamSearchParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDS = (5, 17, 40, 41, 99, 120, 200, 301)
"""Enough end tokens that beams end at different lengths."""
NEW_TOKENS = 9


def of_transformers(model: Any, prompt: list[int], params: BeamSearchParams, ends: list[int]) -> list[tuple[Any, ...]]:
    import torch

    result = model.generate(
        torch.tensor([prompt]),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        max_new_tokens=params.max_tokens,
        eos_token_id=ends or None,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = []
    for tokens, score in zip(result.sequences.tolist(), result.sequences_scores.tolist(), strict=True):
        new = tokens[len(prompt) :]
        first_end = next((i for i, token in enumerate(new) if token in ends), len(new) - 1)
        found.append((new[: first_end + 1], score))
    return found


@pytest.fixture(scope="module")
def tiny(tiny_llama_dir: Path) -> Iterator[tuple[LLM, Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    with LLM(str(tiny_llama_dir), platform="cpu", dtype="float32", max_model_len=128, block_size=4) as llm:
        yield llm, model


def compare(llm: LLM, model: Any, prompts: list[list[int]], params: BeamSearchParams, ends: list[int]) -> set[int]:
    lengths = set()
    for prompt, output in zip(prompts, llm.beam_search(prompts, params), strict=True):
        expected = of_transformers(model, prompt, params, ends)
        assert output.prompt_token_ids == prompt
        assert [each.token_ids for each in output.outputs] == [tokens for tokens, _ in expected]
        for index, (each, (tokens, score)) in enumerate(zip(output.outputs, expected, strict=True)):
            assert each.index == index
            assert each.cumulative_logprob is not None
            assert each.cumulative_logprob / len(tokens) ** params.length_penalty == pytest.approx(score, abs=1e-4)
            assert each.finish_reason == ("stop" if tokens[-1] in ends else "length")
            lengths.add(len(tokens))
    return lengths


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"), list(itertools.product([False, True, "never"], [1.0, 0.0, 2.0, -0.5]))
)
def test_a_tiny_model(tiny: tuple[LLM, Any], early_stopping: Any, length_penalty: float) -> None:
    llm, model = tiny
    random = np.random.default_rng(int(10 * length_penalty) + 100)
    prompts = [random.integers(3, 300, size).tolist() for size in (1, 6)]
    lengths = set()
    for width in (1, 2, 4) if early_stopping is False else (3,):
        params = BeamSearchParams(
            beam_width=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_tokens=NEW_TOKENS,
            stop_token_ids=ENDS,
            ignore_eos=True,
        )
        if width > 1:  # transformers searches greedily then, and gives no score
            lengths |= compare(llm, model, prompts, params, list(ENDS))
        else:
            assert all(len(output.outputs) == 1 for output in llm.beam_search(prompts, params))
    assert lengths


def test_without_end_tokens_every_sequence_is_as_long_as_it_may_be(tiny: tuple[LLM, Any]) -> None:
    llm, model = tiny
    params = BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True)
    assert compare(llm, model, [[7, 8, 9], [250]], params, []) == {5}


def test_logprobs_are_of_the_tokens_and_the_edits_hold(tiny: tuple[LLM, Any]) -> None:
    llm, _ = tiny
    params = BeamSearchParams(beam_width=2, max_tokens=4, logprobs=3, ignore_eos=True, allowed_token_ids=(10, 20, 30))
    for output in llm.beam_search([[7, 8, 9]], params)[0].outputs:
        assert set(output.token_ids) <= {10, 20, 30}
        assert output.logprobs is not None
        assert [next(iter(table)) for table in output.logprobs] == output.token_ids
        assert output.cumulative_logprob == pytest.approx(
            sum(table[token].logprob for table, token in zip(output.logprobs, output.token_ids, strict=True))
        )
        for table in output.logprobs:
            assert sum(np.exp(entry.logprob) for entry in table.values()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.models
def test_a_real_model(smollm2_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
    settings: dict[str, Any] = {"platform": "cpu", "dtype": "float32", "max_model_len": 64}
    with LLM(str(smollm2_path), platform_option={"weights": "dequantized"}, **settings) as llm:
        assert llm.tokenizer is not None
        prompts = [llm.tokenizer.encode(text) for text in ("The capital of France is", "One, two, three,")]
        params = BeamSearchParams(beam_width=3, max_tokens=6)
        compare(llm, peer, prompts, params, list(llm.plan.model.eos_token_ids))
