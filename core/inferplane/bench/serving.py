"""`bench serve` without its flags: samples, load, figures, files. Knows how the parts are put together."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferplane.bench.datasets import (
    NEED_FILE,
    Sample,
    Shape,
    TextTokenizer,
    WordTokenizer,
    file_samples,
    random_samples,
)
from inferplane.bench.drive import Load, drive, endpoint_url, make_pool, probe
from inferplane.bench.plot import check_plot_path, write_plot
from inferplane.bench.progress import progress
from inferplane.bench.report import serving_text, where, write_json
from inferplane.bench.statistics import Outcome, summarize
from inferplane.errors import InvalidValue


class Dataset(NamedTuple):
    """Which prompts."""

    name: str
    path: Path | None
    shape: Shape
    output_len: int | None = None
    """Wins over what a file says."""


class Server(NamedTuple):
    """Which server, and how it is reached."""

    base_url: str
    endpoint: str
    api_key: str | None = None
    headers: Mapping[str, str] = {}
    verify: bool = True
    timeout: float | None = None
    wait_seconds: float = 0.0


class Reporting(NamedTuple):
    """What is told, and where it is written."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl")
    percentiles: Sequence[float] = (99.0,)
    goodput: Mapping[str, float] = {}
    label: str | None = None
    metadata: Mapping[str, str] = {}
    result: Path | None = None
    """A folder (ends in a separator or exists as one) or a file; None: nothing is written."""
    detailed: bool = False
    plot: Path | None = None
    show_progress: bool = True


def make_samples(dataset: Dataset, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
    """Raises InvalidValue."""
    if count < 1:
        raise InvalidValue("num_prompts", count, "must be at least 1")
    if dataset.name not in NEED_FILE:
        return random_samples(count, dataset.shape, seed, tokenizer)
    if dataset.path is None:
        raise InvalidValue("dataset_path", None, f"dataset {dataset.name} is read from a file", remedy="--dataset-path")
    return file_samples(dataset.name, dataset.path, count, seed, tokenizer, dataset.output_len, dataset.shape)


def measure(server: Server, load: Load, samples: Sequence[Sample], warmups: int, *, show: bool) -> list[Outcome]:
    """Probe, warm up, drive. Raises InferplaneError where the first request fails."""
    return asyncio.run(_measure(server, load, samples, warmups, show=show))


async def _measure(server: Server, load: Load, samples: Sequence[Sample], warmups: int, *, show: bool) -> list[Outcome]:
    url = endpoint_url(server.base_url, server.endpoint)
    pool = make_pool(url, server.api_key, server.headers, verify=server.verify, timeout=server.timeout)
    try:
        await probe(pool, load, server.wait_seconds)
        if warmups:
            await drive(pool, load._replace(request_rate=float("inf")), [samples[0]] * warmups)
        with progress("requests", len(samples), show=show) as advance:
            return await drive(pool, load, samples, lambda outcome: advance())
    finally:
        pool.close()


def bench_serve(
    server: Server,
    load: Load,
    dataset: Dataset,
    reporting: Reporting,
    *,
    count: int,
    warmups: int = 0,
    tokenizer: TextTokenizer | None = None,
    tokenizer_id: str | None = None,
) -> dict[str, Any]:
    """Measure, print, write; the result. Raises InferplaneError."""
    if reporting.plot is not None:
        check_plot_path(reporting.plot)
    if tokenizer is None:
        _note(
            "without --tokenizer prompts are common words of about one token each; reported is what the server counts"
        )
    samples = make_samples(dataset, count, load.seed, tokenizer or WordTokenizer())
    outcomes = measure(server, load, samples, warmups, show=reporting.show_progress)
    rate = load.request_rate
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": load.backend,
        "backend": load.backend,
        "label": reporting.label,
        "model_id": load.model,
        "tokenizer_id": tokenizer_id,
        "num_prompts": count,
        "request_rate": "inf" if rate == float("inf") else rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "base_url": server.base_url,
        "dataset_name": dataset.name,
        "seed": load.seed,
        "ignore_eos": load.ignore_eos,
        **where(),
        **reporting.metadata,
        **summarize(outcomes, percentiles=reporting.percentiles, goodput=reporting.goodput),
    }
    text = serving_text(result, reporting.metrics, reporting.percentiles)
    print(text)
    _warn(outcomes, dataset, load)
    if reporting.result is not None:
        written = _result_path(reporting.result, result)
        write_json(written, {**result, **(_details(outcomes) if reporting.detailed else {})})
        print(f"written: {written}")
    if reporting.plot is not None:
        write_plot(reporting.plot, outcomes, result, text)
        print(f"written: {reporting.plot}")
    return result


def _warn(outcomes: Sequence[Outcome], dataset: Dataset, load: Load) -> None:
    shown: dict[str, str] = {}
    for outcome in outcomes:
        if not outcome.ok:
            shown.setdefault(outcome.failure, outcome.message)
    for kind, message in shown.items():
        _note(f"a failure of kind {kind!r} said: {message}")
    if any(outcome.ok and not outcome.counted for outcome in outcomes):
        _note("the server sends no usage: generated tokens are chunks with text, which may hold several tokens")
    prompts = sum(outcome.prompt_tokens for outcome in outcomes if outcome.ok)
    cached = sum(outcome.cached_tokens or 0 for outcome in outcomes if outcome.ok)
    if cached:
        _note(
            f"{cached} of {prompts} prompt tokens ({cached / max(1, prompts):.0%}) came from the server's prefix cache"
        )
    elif dataset.name not in NEED_FILE:
        _note(
            f"the prompts follow from --seed {load.seed}: a second run of it finds them in the prefix cache of a "
            "server that kept one, and looks faster; change --seed or restart the server between runs"
        )


def _details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft if outcome.ok else 0.0 for outcome in outcomes],
        "itls": [outcome.itls for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [f"{outcome.failure}: {outcome.message}" if outcome.failure else "" for outcome in outcomes],
    }


def _result_path(target: Path, result: dict[str, Any]) -> Path:
    if target.suffix == ".json":
        return target
    concurrency = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = str(result["model_id"]).rstrip("/").rpartition("/")[2]
    name = f"{result['label'] or result['backend']}-{result['request_rate']}qps{concurrency}-{model}-{result['date']}"
    return target / f"{name}.json"


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
