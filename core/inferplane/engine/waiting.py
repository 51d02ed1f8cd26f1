"""The queue of requests that are not in a slot, in the order in which they may start. Knows no pages."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferplane.engine.request import RequestState

_SLACK = 64


class WaitingQueue:
    """A heap over `RequestState.order`; done requests are skipped, so an abort costs nothing but a count."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], RequestState]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, request: RequestState) -> None:
        """Add a new or a preempted request at its place."""
        heapq.heappush(self._heap, (request.order, request))
        self._length += 1

    def peek(self) -> RequestState | None:
        """The request whose turn it is."""
        heap = self._heap
        while heap and heap[0][1].done:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> RequestState | None:
        """Take the request whose turn it is."""
        request = self.peek()
        if request is not None:
            heapq.heappop(self._heap)
            self._length -= 1
        return request

    def discard(self) -> None:
        """One of the queued requests has become done."""
        self._length -= 1
        if len(self._heap) > 2 * self._length + _SLACK:
            self._heap = [entry for entry in self._heap if not entry[1].done]
            heapq.heapify(self._heap)
