"""Equal shares of the engine: who has used how many tokens, as virtual time. Knows neither requests nor slots.

Start-time fair queueing (Goyal, Vin, Cheng 1996): a request of a share starts, in virtual time, where the share's last
one ended, and never before the present; the engine takes the earliest start. A share that floods the queue pushes only
its own requests back.
"""

from __future__ import annotations

_MANY = 4096


class FairShares:
    """Virtual time is in tokens that one share has used while every other was served as much as it wanted."""

    def __init__(self) -> None:
        self._now = 0
        self._ends: dict[str, int] = {}

    def enter(self, share: str, num_tokens: int) -> int:
        """A request with so many prompt tokens joins the queue; returns its virtual start."""
        start = max(self._now, self._ends.get(share, 0))
        self._ends[share] = start + num_tokens
        if len(self._ends) > _MANY:
            # An end in the past says no more than no entry.
            self._ends = {name: end for name, end in self._ends.items() if end > self._now}
        return start

    def begin(self, start: int) -> None:
        """The request with this virtual start has got a slot."""
        self._now = max(self._now, start)

    def charge(self, share: str, num_tokens: int) -> None:
        """The share generated so many tokens (or, below 0, never used what `enter` counted)."""
        self._ends[share] = max(self._now, self._ends.get(share, 0) + num_tokens)
