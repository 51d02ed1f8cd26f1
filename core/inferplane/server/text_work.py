"""Threads for templates and tokenizers, so that no text keeps the event loop or another kind of work. Bounded in
threads, in what waits for them, and in time. Knows no template and no tokenizer.

A thread cannot be stopped: one that is late is given up and replaced, as long as few are; its work has bounds of its
own (the sandbox looks at the clock, the length of a text is limited).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from inferplane.errors import QueueFull
from inferplane.log import get_logger
from inferplane.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger(__name__)

Result = TypeVar("Result")

MAX_LATE = 8
"""Threads that may be busy with what was given up."""


class _Job:
    __slots__ = ("future", "late", "loop", "work")

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.loop = loop
        self.future = future
        self.late = False


class Lane:
    """One kind of work."""

    def __init__(
        self, name: str, *, num_threads: int, max_waiting: int, seconds: float, refused: Callable[[], None]
    ) -> None:
        """seconds: most time for one piece of work, waiting for a thread included; refused: called when too much
        waits."""
        self._refused = refused
        self._name = name
        self._num_threads = num_threads
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._num_started = 0
        self._num_late = 0
        self.num_pending = 0
        """Pieces of work that somebody waits for."""

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """function(*args) on a thread. Raises QueueFull, or ApiError 503 when it takes too long."""
        if self.num_pending >= self._max_waiting + self._num_threads:
            self._refused()
            raise QueueFull(f"{self.num_pending} requests wait for the {self._name}", retry_after=1.0, reason="text")
        loop = asyncio.get_running_loop()
        job = _Job(lambda: function(*args), loop, loop.create_future())
        self.num_pending += 1
        try:
            self._jobs.put(job)
            self._ensure_threads()
            async with asyncio.timeout(self._seconds):
                result: Result = await job.future
                return result
        except TimeoutError:
            self._give_up(job)
            raise ApiError(
                503, f"the {self._name} took more than {self._seconds:.0f} s for this request",
                code="text_timeout", kind="server_error",
            ) from None  # fmt: skip
        finally:
            self.num_pending -= 1

    def _ensure_threads(self) -> None:
        while self._num_started < min(self._num_threads + self._num_late, self.num_pending + self._num_late):
            self._num_started += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _give_up(self, job: _Job) -> None:
        job.future.cancel()
        log.error("the %s has not come to an end with a request within %.0f s", self._name, self._seconds)
        if self._num_late < MAX_LATE:
            job.late = True
            self._num_late += 1

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job.future.cancelled():
                self._tell(job, self._returned, job)
                continue
            try:
                result, error = job.work(), None
            except BaseException as raised:
                result, error = None, raised
            self._tell(job, self._done, job, result, error)

    def _tell(self, job: _Job, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.loop.call_soon_threadsafe(function, *args)

    def _done(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self._returned(job)
        if job.future.done():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    def _returned(self, job: _Job) -> None:
        if job.late:
            # One thread too many from now on; the next job that is late is not replaced by another.
            self._num_late -= 1


class TextWork:
    """The lanes of one server."""

    def __init__(self, refused: Callable[[], None]) -> None:
        """refused: called for every piece of work that is refused."""
        self.templates = Lane("chat template", num_threads=2, max_waiting=256, seconds=8.0, refused=refused)
        self.tokenizer = Lane("tokenizer", num_threads=4, max_waiting=1024, seconds=30.0, refused=refused)
