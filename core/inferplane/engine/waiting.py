"""The queue of requests that are not in a slot, in the order in which they may start. Knows no pages."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferplane.engine.request import RequestState

_SLACK = 64

_Entry = tuple[tuple[int, int], int, "RequestState"]


class WaitingQueue:
    """A heap over `RequestState.order`, and a second one of the short prompts, which may pass a long one that waits for
    its turn among the long ones. What has left the queue is skipped, so an abort costs nothing but a count."""

    def __init__(self, short: int = 0) -> None:
        """short: most known tokens of a request that counts as short."""
        self._short_limit = short
        self._all: list[_Entry] = []
        self._short: list[_Entry] = []
        self._tickets: dict[RequestState, int] = {}
        """Who is queued, and which entry is the valid one."""
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def push(self, request: RequestState) -> None:
        """Add a new or a preempted request at its place."""
        self._num_pushed += 1
        self._tickets[request] = self._num_pushed
        entry = (request.order, self._num_pushed, request)
        heapq.heappush(self._all, entry)
        if len(request.tokens) <= self._short_limit:
            heapq.heappush(self._short, entry)

    def peek(self) -> RequestState | None:
        """The request whose turn it is."""
        return self._top(self._all)

    def peek_short(self) -> RequestState | None:
        """The short request whose turn it is among its like."""
        return self._top(self._short)

    def oldest_arrival(self) -> float | None:
        """When the first of those arrived that have never run; by the scheduler's clock."""
        return min((each.arrival for each in self._tickets if each.queue_seconds is None), default=None)

    def remove(self, request: RequestState) -> None:
        """The request starts, or is done."""
        del self._tickets[request]
        # Whoever is peeked at is removed there; what is left behind elsewhere must not pile up.
        if len(self._all) > 2 * len(self._tickets) + _SLACK:
            self._all = self._cleaned(self._all)
        if len(self._short) > 2 * len(self._tickets) + _SLACK:
            self._short = self._cleaned(self._short)

    def _top(self, heap: list[_Entry]) -> RequestState | None:
        while heap and self._tickets.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _cleaned(self, heap: list[_Entry]) -> list[_Entry]:
        kept = [entry for entry in heap if self._tickets.get(entry[2]) == entry[1]]
        heapq.heapify(kept)
        return kept
