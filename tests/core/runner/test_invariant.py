"""Batched = alone = chunked = preempted, and all of it what transformers computes (float32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferplane_api.sampling import SamplingParams

MODELS = ("tiny_llama_dir", "tiny_gemma3_dir")
TOLERANCE = 1e-4


def prompts(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 300, random.integers(1, longest)).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def peer() -> Any:
    """`peer(path, ids) -> [len(ids), vocab]` raw logits of transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    models: dict[Path, Any] = {}

    def logits(path: Path, ids: list[int]) -> Any:
        if path not in models:
            models[path] = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        with torch.no_grad():
            return models[path](torch.tensor([ids])).logits[0].double().numpy()

    return logits


@pytest.mark.parametrize("platform", ["reference", "cpu"])
@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    model: str, platform: str, engine_of: Any, sequence_of: Any, peer: Any, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model)
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, prompt_logprobs=2)
    sequences = [sequence_of(prompt, params) for prompt in [*prompts(1, 3), list(range(3, 100))]]
    engine_of(path, platform).scheduler.run(sequences, chunk=17)
    for sequence in sequences:
        ids = sequence.prompt + sequence.tokens
        logits = peer(path, ids)
        shifted = logits - logits.max(-1, keepdims=True)
        expected = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        start = len(sequence.prompt)
        assert sequence.tokens == logits[start - 1 : -1].argmax(-1).tolist()
        scores = {**sequence.prompt_logprobs, **{start + i: score for i, score in enumerate(sequence.logprobs)}}
        assert sorted(scores) == list(range(1, len(ids)))
        for position, score in scores.items():
            row = expected[position - 1]
            assert score.token_id == ids[position]
            assert score.logprob == pytest.approx(row[ids[position]], abs=TOLERANCE)
            assert score.rank == 1 + int((row > row[ids[position]] + TOLERANCE).sum())
            assert score.top_logprobs == pytest.approx(np.sort(row)[::-1][: len(score.top_ids)].tolist(), abs=TOLERANCE)
            assert len(score.top_ids) == (3 if position >= start else 2)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    chunk=st.sampled_from([1, 3, 7, 16, 50]),
    preempt=st.sampled_from([0.0, 0.1, 0.3]),
    block_size=st.sampled_from([1, 2, 4, 16]),
)
def test_however_it_is_scheduled_a_request_gives_the_same(
    model: str,
    seed: int,
    chunk: int,
    preempt: float,
    block_size: int,
    engine_of: Any,
    sequence_of: Any,
    request: pytest.FixtureRequest,
) -> None:
    path = request.getfixturevalue(model)
    engine = engine_of(path, "cpu", block_size=block_size, seed=seed, memory_limit_bytes=8 * 2**20)
    kinds = (
        SamplingParams(temperature=0.0, max_tokens=8, logprobs=2, prompt_logprobs=0),
        SamplingParams(temperature=1.0, top_k=20, max_tokens=8, logprobs=1),
        SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4, max_tokens=8),
        SamplingParams(temperature=1.2, min_p=0.02, max_tokens=8, min_tokens=4),
        SamplingParams(max_tokens=8, top_k=3, bad_words_token_ids=tuple((a, b) for a in range(150) for b in (5, 40))),
    )

    def fresh() -> list[Any]:
        return [sequence_of(prompt, kinds[i % 5], seed=seed + i) for i, prompt in enumerate(prompts(seed, 6))]

    alone, batched, chunked = fresh(), fresh(), fresh()
    engine.scheduler.run(alone, together=False)
    engine.scheduler.run(batched)
    engine.scheduler.run(chunked, chunk=chunk, preempt=preempt)
    for first, *others in zip(alone, batched, chunked, strict=True):
        for other in others:
            assert other.tokens == first.tokens
            assert [s.logprob for s in other.logprobs] == pytest.approx(
                [s.logprob for s in first.logprobs], abs=TOLERANCE
            )
            assert {p: s.logprob for p, s in other.prompt_logprobs.items()} == pytest.approx(
                {p: s.logprob for p, s in first.prompt_logprobs.items()}, abs=TOLERANCE
            )
