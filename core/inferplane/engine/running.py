"""The requests that hold a slot, oldest first. Knows slots, neither pages nor budgets."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

from inferplane.engine.request import NO_SLOT, RequestState, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

_by_order = attrgetter("order")


class RunningSet:
    """Two lists in `RequestState.order`, and the free slots. Done requests stay listed until `compact`."""

    def __init__(self, num_slots: int) -> None:
        self.decoding: list[RequestState] = []
        self.prefilling: list[RequestState] = []
        self.removed: list[int] = []
        """Slots given up since the last launched plan."""
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._has_done = False

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self.decoding
        yield from self.prefilling

    @property
    def has_free_slot(self) -> bool:
        """True when one more request can run."""
        return bool(self._free_slots)

    def start(self, request: RequestState) -> None:
        """Give the request a slot; it prefills first."""
        request.slot = self._free_slots.pop()
        request.status = Status.PREFILLING
        insort(self.prefilling, request, key=_by_order)

    def begin_decoding(self, request: RequestState) -> None:
        """Every known token of the request is planned."""
        self.prefilling.remove(request)
        request.status = Status.DECODING
        insort(self.decoding, request, key=_by_order)

    def last(self) -> RequestState | None:
        """The request that is preempted first."""
        tails = [requests[-1] for requests in (self.decoding, self.prefilling) if requests]
        return max(tails, key=_by_order, default=None)

    def remove(self, request: RequestState) -> None:
        """Take a live request out; its slot may be used again in the next plan."""
        requests = self.decoding if request.status is Status.DECODING else self.prefilling
        if requests[-1] is request:
            requests.pop()
        else:
            requests.remove(request)
        self.give_up_slot(request)

    def give_up_slot(self, request: RequestState) -> None:
        """Free the slot of a request that is done or leaves."""
        self.removed.append(request.slot)
        self._free_slots.append(request.slot)
        request.slot = NO_SLOT
        self._has_done = True

    def compact(self) -> None:
        """Forget the requests that are done."""
        if self._has_done:
            self._has_done = False
            self.decoding = [request for request in self.decoding if not request.done]
            self.prefilling = [request for request in self.prefilling if not request.done]

    def take_removed(self) -> list[int]:
        """The slots that the next launched plan must report as removed."""
        removed = self.removed
        self.removed = []
        return removed
