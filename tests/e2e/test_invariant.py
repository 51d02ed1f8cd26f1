"""hit = miss = chunked = preempted = batched = alone, through the whole engine.

In float32 tokens are equal and log-probabilities within 1e-4. In bfloat16, where the order of summation decides near
ties, tokens are equal up to the first position whose top-1/top-2 margin is below MARGIN, and the share of prompts with
such a position is printed. Prompts come from a seed and none is left out.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from inferplane import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from inferplane.client.outputs import RequestOutput

MARGIN = 0.375
"""In nats. bfloat16 has steps of 1/8 between 16 and 32, where the largest logits lie; a different order of summation
moves a logit, and with it a log-probability, by up to three of them."""


class Case(NamedTuple):
    """A prompt and what is generated."""

    prompt: list[int]
    max_tokens: int
    prompt_logprobs: bool


def make_cases(seed: int, vocab_size: int, longest: int, count: int) -> list[Case]:
    """Random prompts; half share a prefix, one in three asks for prompt log-probabilities, none repeats exactly."""
    rng = random.Random(seed)
    shared = [rng.randrange(vocab_size) for _ in range(longest // 2)]
    cases = []
    for index in range(count):
        own = [rng.randrange(vocab_size) for _ in range(rng.randrange(3, longest // 2))]
        prompt = shared[: rng.randrange(1, len(shared))] + own if index % 2 else own
        cases.append(Case(prompt, rng.randrange(4, 14), index % 3 == 0))
    return cases


def params_of(case: Case) -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=case.max_tokens,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=0 if case.prompt_logprobs else None,
    )


def run(llm: LLM, cases: list[Case]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": c.prompt} for c in cases], [params_of(c) for c in cases])


def alone(model: str, cases: list[Case], **settings: Any) -> list[RequestOutput]:
    """The truth: one request at a time, whole prompts, no prefix cache, no overlap."""
    with LLM(
        model=model,
        enable_prefix_caching=False,
        max_num_seqs=1,
        async_scheduling=False,
        max_num_batched_tokens=2048,
        **settings,
    ) as llm:
        return [run(llm, [case])[0] for case in cases]


def chosen_logprobs(result: RequestOutput) -> list[float]:
    sequence = result.outputs[0]
    return [table[token].logprob for token, table in zip(sequence.token_ids, sequence.logprobs or [], strict=True)]


def margins(result: RequestOutput) -> list[float]:
    """Of each generated token: top-1 minus top-2."""
    out = []
    for table in result.outputs[0].logprobs or []:
        best = sorted((entry.logprob for entry in table.values()), reverse=True)
        out.append(best[0] - best[1])
    return out


def prompt_logprobs(case: Case, result: RequestOutput) -> list[float]:
    if not case.prompt_logprobs:
        return []
    rows = result.prompt_logprobs
    assert rows is not None
    assert len(rows) == len(case.prompt)
    assert rows[0] is None
    return [row[token].logprob for token, row in zip(case.prompt[1:], rows[1:], strict=True) if row is not None]


def assert_same(cases: list[Case], truth: list[RequestOutput], results: list[RequestOutput], dtype: str) -> int:
    """Compare; returns how many prompts reached a near tie (bfloat16 only)."""
    near_ties = 0
    tolerance = 1e-4 if dtype == "float32" else MARGIN
    for case, want, have in zip(cases, truth, results, strict=True):
        assert len(have.outputs[0].token_ids) == case.max_tokens
        comparable = case.max_tokens
        if dtype != "float32":
            low = [index for index, margin in enumerate(margins(want)) if margin < MARGIN]
            comparable = low[0] if low else comparable
            near_ties += bool(low)
        assert have.outputs[0].token_ids[:comparable] == want.outputs[0].token_ids[:comparable]
        assert chosen_logprobs(have)[:comparable] == pytest.approx(chosen_logprobs(want)[:comparable], abs=tolerance)
        assert prompt_logprobs(case, have) == pytest.approx(prompt_logprobs(case, want), abs=tolerance)
    return near_ties


VARIANTS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 4},
    "preempted": {"num_pages_override": "small", "max_num_batched_tokens": 256, "block_size": 2},
    # The reference platform is the one here that keeps two steps in flight.
    "overlapped": {"platform": "reference", "max_num_batched_tokens": 40, "block_size": 4},
    "reference attention": {"attention_backend": "reference.paged", "max_num_batched_tokens": 50},
}


def check(model: str, cases: list[Case], settings: dict[str, Any], variants: list[str], small_pool: int) -> None:
    truth = alone(model, cases, **settings)
    dtype = settings["dtype"]
    for name in variants:
        variant = dict(VARIANTS[name])
        if variant.get("num_pages_override") == "small":
            variant["num_pages_override"] = small_pool
        with LLM(model=model, **settings, **variant) as llm:
            first = run(llm, cases)  # misses, and hits between the prompts of one batch
            again = run(llm, cases)  # hits
            stats = llm.stats()
            assert llm.plan.scheduling.queue_depth == (2 if name == "overlapped" else 1)
        for label, results in (("first", first), ("again", again)):
            ties = assert_same(cases, truth, results, dtype)
            if dtype != "float32":
                print(f"{name}, {label}: {ties} of {len(cases)} prompts reach a near tie")
        if name == "preempted":
            assert stats.num_preemptions > 0, "the pool was not small enough for this test to mean anything"
        else:
            assert stats.prefix_cache_hits > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_tiny_hybrid_model(tiny_gemma3_dir: Path, seed: int, dtype: str) -> None:
    cases = make_cases(seed, 300, 120, 12)
    settings = {"dtype": dtype, "max_model_len": 160}
    check(str(tiny_gemma3_dir), cases, settings, list(VARIANTS), small_pool=60)


@pytest.mark.models
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2(smollm2_path: Path, dtype: str) -> None:
    cases = make_cases(7, 49_000, 100, 8)
    # Packed weights round activations to 8 bits: where a sum's order tips one over to the next integer, the difference
    # is no longer that of an order of summation.
    settings = {"dtype": dtype, "max_model_len": 128, "platform_option": {"weights": "dequantized"}}
    check(str(smollm2_path), cases, settings, ["batched", "chunked", "preempted"], small_pool=120)


def test_random_shapes(tiny_gemma3_dir: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    """Random page sizes, chunk sizes, pool sizes and queue depths on a hybrid and on a plain model."""
    rng = random.Random(2026)
    for model in (str(tiny_gemma3_dir), str(tiny_checkpoint("llama"))):
        cases = make_cases(rng.randrange(10**6), 300, 100, 8)
        truth = alone(model, cases, dtype="float32", max_model_len=128)
        for _ in range(6):
            block = rng.choice([1, 3, 4, 16])
            budget = rng.choice([5, 17, 64, 300])
            variant = {
                "block_size": block,
                "max_num_batched_tokens": budget,
                "max_num_seqs": min(budget, rng.choice([2, 5, 16])),
                "num_pages_override": rng.choice([None, 2 * 128 // block + 12]),
                "async_scheduling": rng.choice([True, False]),
                "attention_backend": rng.choice([None, "reference.paged"]),
            }
            with LLM(model=model, dtype="float32", max_model_len=128, **variant) as llm:
                for results in (run(llm, cases), run(llm, cases)):
                    assert_same(cases, truth, results, "float32")
