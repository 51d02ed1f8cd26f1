"""The numbers that dashboards query, in a registry of their own; knows neither HTTP nor where the numbers come from.

Names and buckets follow vLLM under the prefix `inferplane:`; the label sets are model_name and engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from inferplane.messages import Stats

PREFIX = "inferplane:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABELS = ("model_name", "engine")
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_NUM_SEQUENCES = (1, 2, 5, 10, 20)

_GAUGES = {
    "num_requests_running": ("Requests in the running batch.", "num_requests_running"),
    "num_requests_waiting": ("Requests waiting to be scheduled.", "num_requests_waiting"),
    "kv_cache_usage_perc": ("Share of the cache's pages in use, 0 to 1.", "kv_cache_usage"),
}
_COUNTERS = {
    "prompt_tokens": ("Prompt tokens computed or found in the cache.", "prompt_tokens"),
    "generation_tokens": ("Generated tokens.", "generation_tokens"),
    "num_preemptions": ("Requests put back into the queue to free cache pages.", "num_preemptions"),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache.", "prefix_cache_queries"),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", "prefix_cache_hits"),
    "corrupted_requests": ("Requests whose logits held NaN.", "corrupted_requests"),
    "engine_restarts": ("How often a dead or hung engine was started again.", "engine_restarts"),
}


REJECTIONS = ("queue_requests", "queue_tokens", "queue_text", "queue_timeout")
"""Too many requests or tokens wait, too much text waits for a template or the tokenizer, or one waited too long."""


def token_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the longest context."""
    buckets: list[int] = []
    decade = 1
    while True:
        for factor in (1, 2, 5):
            if factor * decade > max_model_len:
                return tuple(buckets) or (1,)
            buckets.append(factor * decade)
        decade *= 10


class _EngineCollector(Collector):
    """The engine's own counters, read when somebody asks."""

    def __init__(self, stats: Callable[[], Stats], labels: Sequence[str]) -> None:
        self._stats = stats
        self._values = labels

    def collect(self) -> Iterable[Metric]:
        """One family for every number of the engine's Stats."""
        stats = self._stats()
        for name, (text, field) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=_LABELS)
            gauge.add_metric(self._values, getattr(stats, field))
            yield gauge
        for name, (text, field) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=_LABELS)
            counter.add_metric(self._values, getattr(stats, field))
            yield counter


class Metrics:
    """Everything that one front end measures about one engine."""

    def __init__(self, *, model_name: str, engine: int, max_model_len: int, stats: Callable[[], Stats]) -> None:
        self.registry = CollectorRegistry()
        self._values = (model_name, str(engine))
        self.registry.register(_EngineCollector(stats, self._values))
        tokens = token_buckets(max_model_len)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            family = Histogram(PREFIX + name, text, _LABELS, buckets=buckets, registry=self.registry)
            return family.labels(*self._values)

        self.time_to_first_token = histogram("time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN)
        self.inter_token_latency = histogram("inter_token_latency_seconds", "Between two tokens.", _PER_TOKEN)
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", _PER_TOKEN
        )
        self.e2e_latency = histogram("e2e_request_latency_seconds", "Arrival to last token.", _REQUEST)
        self.queue_time = histogram("request_queue_time_seconds", "Waiting to be scheduled.", _REQUEST)
        self.prefill_time = histogram("request_prefill_time_seconds", "Scheduled to first token.", _REQUEST)
        self.decode_time = histogram("request_decode_time_seconds", "First to last token.", _REQUEST)
        self.inference_time = histogram("request_inference_time_seconds", "Scheduled to last token.", _REQUEST)
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self.generation_tokens = histogram("request_generation_tokens", "Tokens generated for a request.", tokens)
        self.params_n = histogram("request_params_n", "The parameter n.", _NUM_SEQUENCES)
        self.params_max_tokens = histogram("request_params_max_tokens", "The parameter max_tokens.", tokens)
        self._success = Counter(
            PREFIX + "request_success", "Finished requests.", (*_LABELS, "finished_reason"), registry=self.registry
        )
        self._rejected = Counter(
            PREFIX + "request_rejected", "Requests that were not taken or never begun.", (*_LABELS, "reason"),
            registry=self.registry,
        )  # fmt: skip
        for reason in REJECTIONS:
            self._rejected.labels(*self._values, reason)
        self._http = Counter("http_requests", "HTTP requests.", ("handler", "method", "status"), registry=self.registry)
        self._http_seconds = Histogram(
            "http_request_duration_seconds", "Duration of HTTP requests.", ("handler", "method"), registry=self.registry
        )
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(*self._values, reason)

    def info(self, name: str, text: str, rows: Sequence[Mapping[str, str]]) -> None:
        """A gauge that is 1 for each row of facts; all rows have the same keys."""
        if not rows:
            return
        family = Gauge(PREFIX + name, text, (*_LABELS, *rows[0]), registry=self.registry)
        for row in rows:
            family.labels(*self._values, *row.values()).set(1)

    def finished(self, reason: str) -> None:
        """Count a finished sequence."""
        self._success.labels(*self._values, reason).inc()

    def rejected(self, reason: str) -> None:
        """Count a request that was refused for load: one of REJECTIONS."""
        self._rejected.labels(*self._values, reason).inc()

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an HTTP request."""
        self._http.labels(handler, method, f"{status // 100}xx").inc()
        self._http_seconds.labels(handler, method).observe(seconds)

    def render(self) -> bytes:
        """The text that a scraper gets."""
        return generate_latest(self.registry)


class SequenceTimer:
    """Turns the arrival times of one sequence's tokens into observations. Times are `time.monotonic()` seconds."""

    __slots__ = ("_arrival", "_first", "_last", "_metrics", "_num_tokens", "_queue")

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._queue = 0.0
        self._first: float | None = None
        self._last = arrival
        self._num_tokens = 0

    def tokens(self, count: int, now: float, queue_seconds: float | None) -> None:
        """`count` tokens came; queue_seconds is given with the first."""
        if queue_seconds is not None:
            self._queue = queue_seconds
            self._metrics.queue_time.observe(queue_seconds)
        if not count:
            return
        if self._first is None:
            self._first = now
            self._metrics.time_to_first_token.observe(now - self._arrival)
        else:
            self._metrics.inter_token_latency.observe((now - self._last) / count)
        self._last = now
        self._num_tokens += count

    def finish(self, reason: str, num_prompt_tokens: int) -> None:
        """The sequence ended."""
        metrics = self._metrics
        metrics.finished(reason)
        metrics.prompt_tokens.observe(num_prompt_tokens)
        metrics.generation_tokens.observe(self._num_tokens)
        metrics.e2e_latency.observe(self._last - self._arrival)
        if self._first is None:
            return
        scheduled = self._arrival + self._queue
        decode = self._last - self._first
        metrics.prefill_time.observe(max(0.0, self._first - scheduled))
        metrics.decode_time.observe(decode)
        metrics.inference_time.observe(max(0.0, self._last - scheduled))
        if self._num_tokens > 1:
            metrics.time_per_output_token.observe(decode / (self._num_tokens - 1))
