"""Throughput and latency of an engine whose time the test sets; and once of a real one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferplane.bench.offline import Iterations, fixed_length, measure_latency, measure_throughput
from inferplane.cli.main import main


class FakeEngine:
    """Generates what was asked for in no time; the clock is the test's."""

    plan = SimpleNamespace(model=SimpleNamespace(vocab_size=50))

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def generate(self, prompts: list[Any], params: Any, *, use_tqdm: bool) -> list[Any]:
        self.calls.append(prompts)
        each = params if isinstance(params, list) else [params] * len(prompts)
        return [
            SimpleNamespace(
                prompt_token_ids=prompt["prompt_token_ids"],
                outputs=[SimpleNamespace(token_ids=[0] * one.max_tokens) for _ in range(one.n)],
            )
            for prompt, one in zip(prompts, each, strict=True)
        ]


def test_throughput() -> None:
    prompts = [{"prompt_token_ids": [1, 2, 3]}, {"prompt_token_ids": [1]}]
    clock = iter([100.0, 104.0]).__next__
    result = measure_throughput(FakeEngine(), prompts, [fixed_length(5, n=2), fixed_length(2)], clock=clock)  # type: ignore[arg-type]
    assert (result["elapsed_time"], result["num_requests"]) == (4.0, 2)
    assert (result["total_num_prompt_tokens"], result["total_num_output_tokens"]) == (4, 12)
    assert (result["requests_per_second"], result["tokens_per_second"]) == (0.5, 4.0)
    assert result["output_tokens_per_second"] == 3.0


def test_latency_leaves_the_warm_up_out_and_repeats_no_prompt() -> None:
    # Each batch takes as long as its number: 1, 2, 3, ...
    times = itertools.chain.from_iterable((10.0 * n, 10.0 * n + n) for n in itertools.count(1))
    engine = FakeEngine()
    iterations = Iterations(batch_size=2, input_len=9, output_len=3, num_warmups=2, num_iters=3)
    result = measure_latency(engine, iterations, 0, clock=_skipping(times, warmup=2))  # type: ignore[arg-type]
    assert result["latencies"] == [3.0, 4.0, 5.0]
    assert (result["avg_latency"], result["percentiles"]["50"]) == (4.0, 4.0)
    prompts = [tuple(prompt["prompt_token_ids"]) for call in engine.calls for prompt in call]
    assert len(set(prompts)) == len(prompts) == 10


def _skipping(times: Any, warmup: int) -> Any:
    """The end of a warm-up batch is not read."""
    calls = itertools.count()

    def clock() -> float:
        if next(calls) < warmup:
            start = next(times)
            next(times)
            return float(start)
        return float(next(times))

    return clock


COMMON = ["--platform", "reference", "--max-model-len", "64", "--num-pages-override", "64", "--threads", "1"]


def test_the_commands_measure_a_real_engine(
    tiny_llama_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    sizes = ["--num-prompts", "3", "--input-len", "4", "--output-len", "5", "--output-json", str(path)]
    assert main(["bench", "throughput", str(tiny_llama_dir), *COMMON, *sizes]) == 0
    result = json.loads(path.read_text())
    assert (result["total_num_prompt_tokens"], result["total_num_output_tokens"]) == (12, 15)
    out = capsys.readouterr()
    assert out.out.startswith("Throughput: ")
    assert "prefix cache is off" in out.err

    sizes = [
        "--batch-size",
        "2",
        "--input-len",
        "4",
        "--output-len",
        "3",
        "--num-iters-warmup",
        "1",
        "--num-iters",
        "2",
    ]
    assert main(["bench", "latency", str(tiny_llama_dir), *COMMON, *sizes, "--output-json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert len(result["latencies"]) == 2
    assert result.keys() >= {"avg_latency", "latencies", "percentiles"}
    assert capsys.readouterr().out.startswith("Avg latency: ")
