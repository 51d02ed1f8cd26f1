"""Turns the arrival times of one sequence's tokens into observations; knows no text and no HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferplane.metrics.measured import Metrics


class RequestTimes(NamedTuple):
    """How long one sequence took, in seconds; None for what has not happened."""

    queue: float | None
    time_to_first_token: float | None
    """From arrival."""
    prefill: float | None
    """Scheduled to first token."""
    decode: float | None
    """First to last token."""
    inference: float | None
    """Scheduled to last token."""
    e2e: float
    """Arrival to last token."""
    num_tokens: int


class SequenceTimer:
    """Times are `time.monotonic()` seconds."""

    __slots__ = ("_arrival", "_first", "_last", "_metrics", "_num_tokens", "_queue")

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._queue: float | None = None
        self._first: float | None = None
        self._last = arrival
        self._num_tokens = 0

    def scheduled(self, queue_seconds: float, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """The engine has begun, after so long in its queue; some of the prompt it need not compute."""
        self._queue = queue_seconds
        self._metrics.queue_time.observe(queue_seconds)
        self._metrics.prompt(num_prompt_tokens, num_cached_tokens)

    def tokens(self, count: int, now: float) -> None:
        """`count` tokens came."""
        if not count:
            return
        if self._first is None:
            self._first = now
            self._metrics.time_to_first_token.observe(now - self._arrival)
        else:
            self._metrics.inter_token_latency.observe((now - self._last) / count, count)
        self._last = now
        self._num_tokens += count

    def times(self) -> RequestTimes:
        """So far."""
        first, last = self._first, self._last
        prefill = inference = None
        if self._queue is not None and first is not None:
            scheduled = self._arrival + self._queue
            prefill, inference = max(0.0, first - scheduled), max(0.0, last - scheduled)
        return RequestTimes(
            queue=self._queue,
            time_to_first_token=None if first is None else first - self._arrival,
            prefill=prefill,
            decode=None if first is None else last - first,
            inference=inference,
            e2e=last - self._arrival,
            num_tokens=self._num_tokens,
        )

    def finish(self, reason: str, num_prompt_tokens: int) -> None:
        """The sequence ended."""
        metrics, times = self._metrics, self.times()
        metrics.finished(reason)
        metrics.prompt_tokens.observe(num_prompt_tokens)
        metrics.generation_tokens.observe(times.num_tokens)
        metrics.e2e_latency.observe(times.e2e)
        if times.prefill is not None:
            metrics.prefill_time.observe(times.prefill)
        if times.decode is not None:
            metrics.decode_time.observe(times.decode)
        if times.inference is not None:
            metrics.inference_time.observe(times.inference)
        if times.decode is not None and times.num_tokens > 1:
            metrics.time_per_output_token.observe(times.decode / (times.num_tokens - 1))
