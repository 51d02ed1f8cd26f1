"""Seconds of each phase of a start, in order; knows no phase."""

from __future__ import annotations

import time


class Timeline:
    """Starts when it is made."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float]] = []
        """(phase, seconds)."""
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        """Name the phase that has just ended."""
        now = time.perf_counter()
        self.phases.append((name, now - self._last))
        self._last = now
