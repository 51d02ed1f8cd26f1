"""Shows downloads: a bar on a terminal, a log line now and then elsewhere. Knows no source."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from inferplane.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferplane.sources.protocol import Progress

log = get_logger(__name__)

LOG_INTERVAL = 10.0
"""Seconds between log lines."""


@contextlib.contextmanager
def show_progress() -> Iterator[Progress]:
    """A callback for `resolve_source`; nothing is shown until something is downloaded."""
    if not sys.stderr.isatty():
        yield _LoggedProgress()
        return
    bar = _BarProgress()
    try:
        yield bar
    finally:
        bar.close()


class _LoggedProgress:
    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now < self._due.get(what, 0.0) and done != total:
            return
        self._due[what] = now + LOG_INTERVAL
        share = f" of {total / 1e6:.0f}" if total else ""
        log.info("%s: %.0f%s MB", what, done / 1e6, share)


class _BarProgress:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            SpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bars = Progress(*columns, console=Console(stderr=True), transient=False)
        self._tasks: dict[str, object] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if not self._tasks:
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)  # type: ignore[arg-type]

    def close(self) -> None:
        """Leave the finished bars on the screen."""
        if self._tasks:
            self._bars.stop()
