"""How much may wait for an engine, and how long until there is room again. Knows counts, no messages."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from inferplane.cells import NUM_OPEN, NUM_WAITING, TOKENS_WAITING, Cells
from inferplane.errors import InvalidValue, QueueFull

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEMBERED = 64
"""Events from which the pace is taken."""
MAX_RETRY_SECONDS = 60.0


class _Pace:
    """Units a second over the last events."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def count(self, amount: int) -> None:
        self._events.append((self._clock(), amount))

    def seconds_for(self, amount: int) -> float:
        """How long so much should take; 1 s where nothing is known."""
        if not self._events:
            return 1.0
        seconds = self._clock() - self._events[0][0]
        done = sum(each for _, each in self._events)
        return amount * seconds / done if done else 1.0


class Admission:
    """Counts what one front end has at an engine, and minds what others have there.

    A request waits from `enter` to `start`; `leave` ends it.
    """

    def __init__(
        self,
        max_running: int,
        max_requests: int,
        max_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        cells: Cells | None = None,
    ) -> None:
        """max_running: the engine's slots; max_requests and max_tokens may wait beside them. cells: where the counts
        stand, beside those of other front ends of the same engine, to which the bounds hold together."""
        self._cells = cells or Cells.private()
        self._most = max_running + max_requests
        self._max_tokens = max_tokens
        self._ends = _Pace(clock)
        self._starts = _Pace(clock)
        self.num_open = 0
        self.num_waiting = 0
        self.tokens_waiting = 0
        self._show()

    def check(self, num_requests: int, num_tokens: int) -> None:
        """Raises QueueFull with an estimate of when to come back, or InvalidValue for more than could ever be taken.

        A prompt longer than the bound on tokens is taken when nothing waits.
        """
        if num_requests > self._most:
            raise InvalidValue(
                "n", num_requests, f"a request may have at most {self._most} sequences here, prompts times n",
                remedy="send several requests, or start the server with a larger --max-num-queued-reqs",
            )  # fmt: skip
        num_open = self.num_open + int(self._cells.others(NUM_OPEN))
        excess = num_open + num_requests - self._most
        if excess > 0:
            raise QueueFull(
                f"{num_open} requests are running or waiting, at most {self._most} may",
                retry_after=_bounded(self._ends.seconds_for(excess)),
                reason="requests",
            )
        waiting = self.tokens_waiting + int(self._cells.others(TOKENS_WAITING))
        excess = waiting + num_tokens - self._max_tokens
        if excess > 0 and waiting:
            raise QueueFull(
                f"{waiting} prompt tokens are waiting, at most {self._max_tokens} may",
                retry_after=_bounded(self._starts.seconds_for(excess)),
                reason="tokens",
            )

    def enter(self, num_tokens: int) -> None:
        """A request with so many prompt tokens was sent."""
        self.num_open += 1
        self.num_waiting += 1
        self.tokens_waiting += num_tokens
        self._show()

    def start(self, num_tokens: int) -> None:
        """It has left the queue."""
        self.num_waiting -= 1
        self.tokens_waiting -= num_tokens
        self._starts.count(num_tokens)
        self._show()

    def leave(self, num_tokens: int, *, started: bool) -> None:
        """It is over, whether or not it ever started."""
        self.num_open -= 1
        if not started:
            self.num_waiting -= 1
            self.tokens_waiting -= num_tokens
        self._ends.count(1)
        self._show()

    def _show(self) -> None:
        own = self._cells.own
        own[NUM_OPEN], own[NUM_WAITING], own[TOKENS_WAITING] = self.num_open, self.num_waiting, self.tokens_waiting


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), MAX_RETRY_SECONDS)
