"""What an API request's consumer reads: the deltas of its sequences, in one queue. Knows no engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from inferplane.messages import Delta, Request


class Stream:
    """See RequestStream."""

    def __init__(self, requests: list[Request], forget: Callable[[list[str]], None]) -> None:
        """forget(request ids): called for those that are given up before their end."""
        self._forget = forget
        self._ids = [request.request_id for request in requests]
        self._open = set(range(len(requests)))
        self._queue: asyncio.Queue[tuple[int, Delta] | Exception] = asyncio.Queue()

    def deliver(self, index: int, delta: Delta) -> None:
        """Something came for one sequence."""
        self._queue.put_nowait((index, delta))

    def fail(self, error: Exception) -> None:
        """End all sequences; the consumer gets `error` behind what was delivered before."""
        self._forget([self._ids[index] for index in self._open])
        self._queue.put_nowait(error)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        try:
            while self._open:
                item = await self._queue.get()
                if isinstance(item, Exception):
                    self._open.clear()
                    raise item
                index, delta = item
                if index not in self._open:
                    continue
                if delta.finish_reason is not None:
                    self._open.discard(index)
                yield index, delta
        finally:
            self.abort()

    def abort(self, index: int | None = None) -> None:
        """Stop one sequence, or all; idempotent."""
        indices = list(self._open) if index is None else [index] if index in self._open else []
        self._open.difference_update(indices)
        self._forget([self._ids[i] for i in indices])


class OpenRequest:
    """A request that was sent and has not ended."""

    __slots__ = ("index", "num_deaths", "produced", "request", "started", "stream")

    def __init__(self, request: Request, stream: Stream, index: int) -> None:
        self.request = request
        self.stream = stream
        self.index = index
        self.started = False
        """It has left the engine's queue."""
        self.produced = False
        """Its consumer has got something."""
        self.num_deaths = 0
        """Engines that died while it was in their batch."""
