"""How much may wait for an engine, and how long until there is room again. Knows counts, no messages."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

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
    """Counts what one front end has at an engine. A request waits from `enter` to `start`; `leave` ends it."""

    def __init__(
        self, max_running: int, max_requests: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """max_running: the engine's slots; max_requests and max_tokens may wait beside them."""
        self._most = max_running + max_requests
        self._max_tokens = max_tokens
        self._ends = _Pace(clock)
        self._starts = _Pace(clock)
        self.num_open = 0
        self.num_waiting = 0
        self.tokens_waiting = 0

    def check(self, num_requests: int, num_tokens: int) -> None:
        """Raises QueueFull with an estimate of when to come back, or InvalidValue for more than could ever be taken.

        A prompt longer than the bound on tokens is taken when nothing waits.
        """
        if num_requests > self._most:
            raise InvalidValue(
                "n", num_requests, f"a request may have at most {self._most} sequences here, prompts times n",
                remedy="send several requests, or start the server with a larger --max-num-queued-reqs",
            )  # fmt: skip
        excess = self.num_open + num_requests - self._most
        if excess > 0:
            raise QueueFull(
                f"{self.num_open} requests are running or waiting, at most {self._most} may",
                retry_after=_bounded(self._ends.seconds_for(excess)),
                reason="requests",
            )
        excess = self.tokens_waiting + num_tokens - self._max_tokens
        if excess > 0 and self.tokens_waiting:
            raise QueueFull(
                f"{self.tokens_waiting} prompt tokens are waiting, at most {self._max_tokens} may",
                retry_after=_bounded(self._starts.seconds_for(excess)),
                reason="tokens",
            )

    def enter(self, num_tokens: int) -> None:
        """A request with so many prompt tokens was sent."""
        self.num_open += 1
        self.num_waiting += 1
        self.tokens_waiting += num_tokens

    def start(self, num_tokens: int) -> None:
        """It has left the queue."""
        self.num_waiting -= 1
        self.tokens_waiting -= num_tokens
        self._starts.count(num_tokens)

    def leave(self, num_tokens: int, *, started: bool) -> None:
        """It is over, whether or not it ever started."""
        self.num_open -= 1
        if not started:
            self.num_waiting -= 1
            self.tokens_waiting -= num_tokens
        self._ends.count(1)


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), MAX_RETRY_SECONDS)
