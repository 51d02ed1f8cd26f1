"""SIGINT and SIGTERM of this process, told to whoever is in charge of its end at the moment. Knows no server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """None is lost between two listeners: what comes while there is none is told to the next one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """All that came."""
        self._kept: list[int] = []
        self._listener: Callable[[int], None] | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Inside, signals come here, on the running event loop."""
        loop = asyncio.get_running_loop()
        for number in NUMBERS:
            loop.add_signal_handler(number, self._take, number)
        try:
            yield
        finally:
            for number in NUMBERS:
                loop.remove_signal_handler(number)

    def tell(self, listener: Callable[[int], None]) -> None:
        """From now on; at once where some are kept."""
        self._listener = listener
        kept, self._kept = self._kept, []
        for number in kept:
            listener(number)

    def keep(self) -> None:
        """Until the next `tell`."""
        self._listener = None

    def _take(self, number: int) -> None:
        self.numbers.append(number)
        if self._listener is None:
            self._kept.append(number)
        else:
            self._listener(number)
