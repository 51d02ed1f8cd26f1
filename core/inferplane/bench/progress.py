"""A progress bar on a terminal; nothing in a pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(what: str, total: int | None, *, show: bool) -> Iterator[Callable[[], None]]:
    """Yields what is called once a step. total: None where it is not known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (show and console.is_terminal), refresh_per_second=2) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
