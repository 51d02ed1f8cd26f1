"""A line about load every few seconds, and none while nothing happens. Knows an engine's Stats, nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from inferplane.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.messages import Stats

log = get_logger(__name__)


class StatsLog:
    """Reads the stats when it is asked to; rates are those since the last time."""

    def __init__(self, stats: Callable[[], Stats], clock: Callable[[], float] = time.monotonic) -> None:
        self._stats = stats
        self._clock = clock
        self._before = stats()
        self._at = clock()

    def line(self) -> str | None:
        """What happened since the last call; None where nothing did and nothing waits."""
        before, now = self._before, self._stats()
        seconds = self._clock() - self._at
        self._before, self._at = now, self._clock()
        prompt = max(0, now.prompt_tokens - before.prompt_tokens)
        generated = max(0, now.generation_tokens - before.generation_tokens)
        if not (prompt or generated or now.num_requests_running or now.num_requests_waiting) or seconds <= 0:
            return None
        queries = now.prefix_cache_queries - before.prefix_cache_queries
        hits = now.prefix_cache_hits - before.prefix_cache_hits
        parts = [
            f"prompt {prompt / seconds:.1f} tokens/s, generation {generated / seconds:.1f} tokens/s",
            f"{now.num_requests_running} running, {now.num_requests_waiting} waiting",
            f"KV cache {now.kv_cache_usage:.1%} used",
        ]
        if queries > 0:
            parts.append(f"prefix cache hits {hits / queries:.1%}")
        return "; ".join(parts)

    async def run(self, interval: float) -> None:
        """Log it every `interval` seconds, for ever."""
        while True:
            await asyncio.sleep(interval)
            if line := self.line():
                log.info("%s", line)
