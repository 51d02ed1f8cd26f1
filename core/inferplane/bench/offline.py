"""`bench throughput` and `bench latency`: this engine without a server, in the caller's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inferplane_api.sampling import SamplingParams

if TYPE_CHECKING:
    from inferplane.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)
Clock = Callable[[], float]


class Iterations(NamedTuple):
    """How `measure_latency` measures."""

    batch_size: int = 8
    input_len: int = 32
    output_len: int = 128
    num_warmups: int = 10
    num_iters: int = 30
    n: int = 1


def random_prompts(llm: LLM, count: int, length: int, seed: int) -> list[dict[str, list[int]]]:
    """Prompts of random token ids."""
    highest = llm.plan.model.vocab_size
    draw = np.random.default_rng(seed)
    return [{"prompt_token_ids": draw.integers(0, highest, length).tolist()} for _ in range(count)]


def fixed_length(length: int, n: int = 1) -> SamplingParams:
    """Exactly `length` tokens, whatever the model says."""
    return SamplingParams(n=n, temperature=1.0, top_p=1.0, max_tokens=length, ignore_eos=True)


def measure_throughput(
    llm: LLM,
    prompts: Sequence[Any],
    params: Sequence[SamplingParams],
    *,
    clock: Clock = time.perf_counter,
    show: bool = True,
) -> dict[str, Any]:
    """All prompts at once, from the first call to the last token; keyed as vLLM's result."""
    started = clock()
    outputs = llm.generate(list(prompts), list(params), use_tqdm=show)
    elapsed = clock() - started
    inputs = sum(len(output.prompt_token_ids) for output in outputs)
    generated = sum(len(sequence.token_ids) for output in outputs for sequence in output.outputs)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(outputs),
        "total_num_tokens": inputs + generated,
        "total_num_prompt_tokens": inputs,
        "total_num_output_tokens": generated,
        "requests_per_second": len(outputs) / elapsed,
        "tokens_per_second": (inputs + generated) / elapsed,
        "output_tokens_per_second": generated / elapsed,
    }


def measure_latency(
    llm: LLM,
    iterations: Iterations,
    seed: int,
    *,
    clock: Clock = time.perf_counter,
    step: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The time of one batch, again and again; keyed as vLLM's result."""
    params = fixed_length(iterations.output_len, iterations.n)
    latencies = []
    for index in range(iterations.num_warmups + iterations.num_iters):
        # Other prompts each time: the prefix cache must not answer for the model.
        prompts = random_prompts(llm, iterations.batch_size, iterations.input_len, seed + index)
        started = clock()
        llm.generate(prompts, params, use_tqdm=False)
        if index >= iterations.num_warmups:
            latencies.append(clock() - started)
        if step is not None:
            step()
    found = np.percentile(latencies, PERCENTILES)
    return {
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": {str(each): float(value) for each, value in zip(PERCENTILES, found, strict=True)},
        **iterations._asdict(),
    }
