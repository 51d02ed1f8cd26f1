"""From the times of requests to the figures that are reported; names and meanings are vLLM's. Prints nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


class Outcome(NamedTuple):
    """One request, done or failed. Times are in seconds of one clock."""

    started: float
    ended: float
    chunk_times: Sequence[float] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    counted: bool = True
    """False: the server sent no usage, and output_tokens are chunks."""
    failure: str = ""
    """The kind, empty for success."""
    message: str = ""
    text: str = ""

    @property
    def ok(self) -> bool:
        """It succeeded."""
        return not self.failure

    @property
    def ttft(self) -> float:
        """Sent to first output; the whole latency where nothing came."""
        return (self.chunk_times[0] if len(self.chunk_times) else self.ended) - self.started

    @property
    def e2el(self) -> float:
        """Sent to last output, or to the end of an answer without any."""
        return (self.chunk_times[-1] if len(self.chunk_times) else self.ended) - self.started

    @property
    def tpot(self) -> float | None:
        """Mean time of a token after the first; None for a single token."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def itls(self) -> list[float]:
        """Gaps between chunks."""
        return list(np.diff(np.asarray(self.chunk_times))) if len(self.chunk_times) > 1 else []


def samples_of(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Metric to its values in milliseconds, over the requests that succeeded."""
    done = [outcome for outcome in outcomes if outcome.ok]
    return {
        "ttft": [1000 * outcome.ttft for outcome in done],
        "tpot": [1000 * outcome.tpot for outcome in done if outcome.tpot is not None],
        "itl": [1000 * gap for outcome in done for gap in outcome.itls],
        "e2el": [1000 * outcome.e2el for outcome in done],
    }


def summarize(
    outcomes: Sequence[Outcome],
    *,
    percentiles: Sequence[float] = (99.0,),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The figures, keyed as in vLLM's result file. goodput: metric to its limit in ms."""
    done = [outcome for outcome in outcomes if outcome.ok]
    duration = max(o.ended for o in outcomes) - min(o.started for o in outcomes) if outcomes else 0.0
    inputs, outputs = sum(o.prompt_tokens for o in done), sum(o.output_tokens for o in done)
    rate = 1 / duration if duration > 0 else 0.0
    cached = [o.cached_tokens for o in done if o.cached_tokens is not None]
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "failures": failures_of(outcomes),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_cached_tokens": sum(cached) if cached else None,
        "request_throughput": len(done) * rate,
        "request_goodput": None if not goodput else sum(_good(o, goodput) for o in done) * rate,
        "output_throughput": outputs * rate,
        "total_token_throughput": (inputs + outputs) * rate,
        "max_output_tokens_per_s": _peak_tokens(done),
        "max_concurrent_requests": _peak_requests(outcomes),
    }
    for name, values in samples_of(done).items():
        result |= _statistics(name, values, percentiles)
    return result


def failures_of(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Kind of failure to count."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.failure:
            counts[outcome.failure] = counts.get(outcome.failure, 0) + 1
    return counts


def parse_goodput(items: Iterable[str]) -> dict[str, float]:
    """["ttft:500", ...], in milliseconds. Raises InvalidValue."""
    limits: dict[str, float] = {}
    for item in items:
        name, _, text = item.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if name not in GOODPUT_METRICS or value < 0:
            known = ", ".join(GOODPUT_METRICS)
            raise InvalidValue("goodput", item, "is not METRIC:MILLISECONDS", remedy=f"metrics are {known}")
        limits[name] = value
    return limits


def parse_percentiles(text: str) -> tuple[float, ...]:
    """ "50,99.9". Raises InvalidValue."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidValue("metric_percentiles", text, "is not a list of numbers with commas between") from error
    if any(not 0 <= value <= 100 for value in values):
        raise InvalidValue("metric_percentiles", text, "must be between 0 and 100")
    return values


def parse_metrics(text: str) -> tuple[str, ...]:
    """ "ttft,itl". Raises InvalidValue."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in METRICS:
            raise InvalidValue("percentile_metrics", name, "is no metric", remedy=f"some of {', '.join(METRICS)}")
    return names


def percentile_label(value: float) -> str:
    """ "p99", "p99.9": the beginning of a key."""
    return f"p{value:g}"


def _statistics(name: str, values: list[float], percentiles: Sequence[float]) -> dict[str, float]:
    array = np.asarray(values or [0.0])
    found = {
        f"mean_{name}_ms": float(array.mean()),
        f"median_{name}_ms": float(np.median(array)),
        f"std_{name}_ms": float(array.std()),
    }
    for each in percentiles:
        found[f"{percentile_label(each)}_{name}_ms"] = float(np.percentile(array, each))
    return found


def _good(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    values = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.e2el}
    return all(1000 * values[name] <= limit for name, limit in limits.items())


def _peak_tokens(done: Sequence[Outcome]) -> float:
    """Most tokens in a second of the run; a chunk counts for the mean of its request."""
    times = [time for o in done for time in o.chunk_times]
    if not times:
        return 0.0
    weights = [o.output_tokens / len(o.chunk_times) for o in done for _ in o.chunk_times]
    seconds = (np.asarray(times) - min(o.started for o in done)).astype(np.int64)
    return float(np.bincount(seconds, weights=weights).max())


def _peak_requests(outcomes: Sequence[Outcome]) -> int:
    events = sorted([(o.started, 1) for o in outcomes] + [(o.ended, -1) for o in outcomes])
    return int(np.cumsum([step for _, step in events]).max()) if events else 0
