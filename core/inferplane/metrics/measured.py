"""Everything that the front ends of one engine measure, with what the engine tells of itself, as Prometheus text.

Names and buckets follow vLLM under the prefix `inferplane:`; the first labels are model_name and engine. With several
API processes every one of them gives the sums over all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.cells import Cells
from inferplane.metrics import names
from inferplane.metrics.names import PREFIX
from inferplane.metrics.series import Counter, Counts, Family, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from inferplane.messages import Stats

    Rows = Sequence[Mapping[str, str]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

NO_HANDLER = "none"
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "other")
"""A client may send any word as its method; it must not make a series of its own."""
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class Metrics:
    """What one front end measures of one engine."""

    def __init__(
        self,
        *,
        model_name: str,
        engine: int,
        max_model_len: int,
        stats: Callable[[], Stats],
        cells: Cells | None = None,
        vllm_names: bool = False,
    ) -> None:
        """cells: where the numbers are kept; by default in this process. vllm_names: show every name that vLLM has
        under its prefix too."""
        self._cells = cells or Cells.private()
        self._labels = (("model_name", model_name), ("engine", str(engine)))
        self._stats = stats
        self._vllm_names = vllm_names
        self._counters: dict[str, tuple[str, str, dict[str, Counter]]] = {}
        self._histograms: dict[str, tuple[str, Histogram]] = {}
        self._infos: list[tuple[str, str, Callable[[], Rows]]] = []
        self._http: dict[tuple[str, str], tuple[list[Counter], Histogram]] = {}
        tokens = names.token_buckets(max_model_len)
        request = names.REQUEST_SECONDS
        new = self._histogram
        self.time_to_first_token = new(
            "time_to_first_token_seconds", "Arrival to first token.", names.FIRST_TOKEN_SECONDS
        )
        self.inter_token_latency = new("inter_token_latency_seconds", "Between two tokens.", names.TOKEN_SECONDS)
        self.time_per_output_token = new(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", names.TOKEN_SECONDS
        )
        self.e2e_latency = new("e2e_request_latency_seconds", "Arrival to last token.", request)
        self.queue_time = new("request_queue_time_seconds", "Waiting to be scheduled.", request)
        self.prefill_time = new("request_prefill_time_seconds", "Scheduled to first token.", request)
        self.decode_time = new("request_decode_time_seconds", "First to last token.", request)
        self.inference_time = new("request_inference_time_seconds", "Scheduled to last token.", request)
        self.prompt_tokens = new("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self.generation_tokens = new("request_generation_tokens", "Tokens generated for a request.", tokens)
        self.max_generation_tokens = new(
            "request_max_num_generation_tokens", "Tokens of the longest of a request's sequences.", tokens
        )
        self.computed_tokens = new(
            "request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not in the cache.", tokens
        )
        self.params_n = new("request_params_n", "The parameter n.", names.NUM_SEQUENCES)
        self.params_max_tokens = new("request_params_max_tokens", "The parameter max_tokens.", tokens)
        self._finished = self._counter("request_success", "Finished requests.", "finished_reason", names.FINISHED)
        self._aborted = self._counter(
            "request_aborted", "Sequences that were ended from outside.", "reason", names.ABORTS
        )
        self._rejected = self._counter(
            "request_rejected", "Requests that were not taken or never begun.", "reason", names.REJECTIONS
        )
        self._sources = self._counter(
            "prompt_tokens_by_source", "Prompt tokens computed, and found in the cache.", "source", names.TOKEN_SOURCES
        )

    def handlers(self, paths: Iterable[str]) -> None:
        """The paths by which HTTP requests are counted; once, before the first request."""
        for path in dict.fromkeys((NO_HANDLER, *paths)):
            for method in _METHODS:
                counters = [Counter(self._cells) for _ in _CLASSES]
                self._http[path, method] = counters, Histogram(self._cells, names.HTTP_SECONDS)

    def info(self, name: str, text: str, rows: Callable[[], Rows]) -> None:
        """A gauge that is 1 for each row of facts, which are asked for when somebody looks."""
        self._infos.append((name, text, rows))

    def finished(self, reason: str) -> None:
        """Count a finished sequence: one of FINISHED."""
        self._finished[reason].inc()

    def aborted(self, reason: str) -> None:
        """Count a sequence that was ended from outside: one of ABORTS."""
        self._aborted[reason].inc()

    def rejected(self, reason: str) -> None:
        """Count a request that was refused for load: one of REJECTIONS."""
        self._rejected[reason].inc()

    def prompt(self, num_tokens: int, num_cached: int) -> None:
        """A prompt is to be computed, but for what the cache has of it."""
        computed = max(0, num_tokens - num_cached)
        self._sources["local_compute"].inc(computed)
        self._sources["local_cache_hit"].inc(num_cached)
        self.computed_tokens.observe(computed)

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an HTTP request."""
        method = method if method in _METHODS else "other"
        counters, duration = self._http.get((handler, method)) or self._http[NO_HANDLER, method]
        counters[min(max(status // 100, 1), len(_CLASSES)) - 1].inc()
        duration.observe(seconds)

    def families(self) -> list[Family]:
        """All numbers of now. Names are without the prefix, but for those of HTTP."""
        return [*self._engine_families(), *self._own_families(), *self._info_families()]

    def render(self) -> bytes:
        """The text that a scraper gets."""
        lines: list[str] = []
        families = self.families()
        for family in families:
            lines += family.lines(PREFIX + family.name)
        if self._vllm_names:
            for family in families:
                if family.name not in names.OURS_ALONE:
                    lines += family.lines(names.VLLM_PREFIX + family.name)
        for family in self._http_families():
            lines += family.lines(family.name)
        return ("\n".join(lines) + "\n").encode()

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        histogram = Histogram(self._cells, bounds)
        self._histograms[name] = text, histogram
        return histogram

    def _counter(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        series = {value: Counter(self._cells) for value in values}
        self._counters[name] = text, label, series
        return series

    def _engine_families(self) -> Iterator[Family]:
        stats = self._stats()
        for table, kind in ((names.ENGINE_GAUGES, "gauge"), (names.ENGINE_COUNTERS, "counter")):
            for name, (text, field) in table.items():
                yield Family(name, kind, text, [(self._labels, getattr(stats, field))])
        counts = stats.step_tokens or [0] * (len(names.STEP_TOKENS) + 1)
        tokens = Counts(names.STEP_TOKENS, counts, stats.step_tokens_sum)
        yield Family(names.STEP_HISTOGRAM, "histogram", "Tokens of a step of the engine.", [(self._labels, tokens)])

    def _own_families(self) -> Iterator[Family]:
        for name, (text, histogram) in self._histograms.items():
            yield Family(name, "histogram", text, [(self._labels, histogram.counts)])
        for name, (text, label, series) in self._counters.items():
            shown = [((*self._labels, (label, value)), counter.value) for value, counter in series.items()]
            yield Family(name, "counter", text, shown)
        cached = self._sources["local_cache_hit"].value
        yield Family("prompt_tokens_cached", "counter", "Prompt tokens found in the cache.", [(self._labels, cached)])

    def _info_families(self) -> Iterator[Family]:
        for name, text, rows in self._infos:
            if series := [((*self._labels, *row.items()), 1.0) for row in rows()]:
                yield Family(name, "gauge", text, series)

    def _http_families(self) -> Iterator[Family]:
        requests: list[tuple[Sequence[tuple[str, str]], float]] = []
        durations: list[tuple[Sequence[tuple[str, str]], Counts]] = []
        for (handler, method), (counters, duration) in self._http.items():
            labels = (("handler", handler), ("method", method))
            values = [counter.value for counter in counters]
            if any(values):
                requests += [((*labels, ("status", c)), v) for c, v in zip(_CLASSES, values, strict=True) if v]
                durations.append((labels, duration.counts))
        yield Family("http_requests", "counter", "HTTP requests.", requests)
        yield Family("http_request_duration_seconds", "histogram", "Duration of HTTP requests.", durations)
