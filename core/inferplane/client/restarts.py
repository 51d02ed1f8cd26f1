"""Whether and when a dead engine is started again, and what its counters were. Knows no process."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from inferplane.messages import Stats

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
_GAUGES = frozenset(
    {"num_requests_running", "num_requests_waiting", "num_tokens_waiting", "kv_cache_usage", "oldest_waiting_seconds"}
)


class Restarts:
    """At most so many, each after twice the time of the one before."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.num_started = 0

    @property
    def left(self) -> int:
        """How many more there may be."""
        return self._most - self.num_started

    def next_delay(self) -> float | None:
        """Seconds to wait before the next one, or None when there have been enough."""
        if self.left <= 0:
            return None
        self.num_started += 1
        return float(min(FIRST_DELAY * 2 ** (self.num_started - 1), MAX_DELAY))


def carried_over(before: Stats, after: Stats) -> Stats:
    """Counters of an engine added to those of the one before it; gauges are the new one's."""
    return Stats(
        **{
            name: getattr(after, name) if name in _GAUGES else _sum(getattr(before, name), getattr(after, name))
            for name in Stats.__struct_fields__
        }
    )


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, list):
        return [sum(pair) for pair in zip_longest(one, other, fillvalue=0)]
    return one + other
