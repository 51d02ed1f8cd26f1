"""What an API request's consumer reads: the deltas of its sequences, in one queue. Knows no engine."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from inferplane.messages import Delta, Request


MOST_AT_ONCE = 256
"""Deltas of one step of a stream: what a slow consumer has missed must not become one huge piece."""


class Stream:
    """See RequestStream."""

    def __init__(self, requests: list[Request], forget: Callable[[list[str]], None]) -> None:
        """forget(request ids): called for those that are given up before their end."""
        self._forget = forget
        self._ids = [request.request_id for request in requests]
        self._open = set(range(len(requests)))
        self._here: deque[tuple[int, Delta] | Exception] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def deliver(self, index: int, delta: Delta) -> None:
        """Something came for one sequence."""
        self._put((index, delta))

    def fail(self, error: Exception) -> None:
        """End all sequences; the consumer gets `error` behind what was delivered before."""
        self._forget([self._ids[index] for index in self._open])
        self._put(error)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        try:
            while self._open:
                await self._something()
                item = self._take()
                if item is not None:
                    yield item
        finally:
            self.abort()

    async def steps(self) -> AsyncGenerator[list[tuple[int, Delta]], None]:
        """See RequestStream."""
        here = self._here
        try:
            while self._open:
                if not here:
                    await self._something()
                step: list[tuple[int, Delta]] = []
                while here and len(step) < MOST_AT_ONCE:
                    if step and isinstance(here[0], Exception):
                        break
                    item = self._take()
                    if item is not None:
                        step.append(item)
                if step:
                    yield step
        finally:
            self.abort()

    def abort(self, index: int | None = None) -> None:
        """Stop one sequence, or all; idempotent."""
        indices = list(self._open) if index is None else [index] if index in self._open else []
        self._open.difference_update(indices)
        self._forget([self._ids[i] for i in indices])

    def _put(self, item: tuple[int, Delta] | Exception) -> None:
        self._here.append(item)
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _something(self) -> None:
        """Wait until there is something to take."""
        while not self._here:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def _take(self) -> tuple[int, Delta] | None:
        """The next item; None for one of a sequence that has ended. Raises what `fail` was given."""
        item = self._here.popleft()
        if isinstance(item, Exception):
            self._open.clear()
            raise item
        index, delta = item
        if index not in self._open:
            return None
        if delta.finish_reason is not None:
            self._open.discard(index)
        return item


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
