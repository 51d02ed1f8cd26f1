"""The API processes of a server: starts them, tells them of the engine, and starts those again that die.

They share one listening socket: a connection waits for whoever accepts it first, and is lost with nobody who has not.
Knows no route.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from inferplane.cells import SharedRows
from inferplane.log import get_logger
from inferplane.server.worker_messages import Drain, Serve, WorkerLaunch
from inferplane.server.worker_process import WorkerProcess

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from inferplane.client.following_client import EngineNews
    from inferplane.errors import InferplaneError
    from inferplane.launch_types import FrontEnd
    from inferplane.server.worker_messages import ToWorker

log = get_logger(__name__)

CLOSE_SECONDS = 5.0
FIRST_DELAY = 0.1
MAX_DELAY = 30.0
GOOD_SECONDS = 30.0
"""What has lived so long has died by accident."""
MAX_DEATHS = 5
"""Deaths of one process in a row, each sooner than that, after which the server ends: it would go on for ever."""


class Workers:
    """Lives on one event loop: `start`, `ready`, `serve`, `run`, and `close` at the end."""

    def __init__(
        self,
        front_end: FrontEnd,
        listener: socket.socket,
        *,
        news: Callable[[], EngineNews],
        on_gone: Callable[[str], None],
    ) -> None:
        """news(): of the engine, as it is now; on_gone(client id): a process has died, its requests are void."""
        self._front_end = front_end
        self._listener = listener
        self._rows = SharedRows.create(front_end.num_processes)
        self._news = news
        self._on_gone = on_gone
        self._workers: list[WorkerProcess | None] = [None] * front_end.num_processes
        self._deaths = [0] * front_end.num_processes
        self._serving = False
        self._num_drains = 0
        self._failure: InferplaneError | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start all of them; the engine's address is known."""
        for index in range(len(self._workers)):
            self._start(index)

    async def ready(self) -> None:
        """Wait until all have loaded what they need. Raises InferplaneError with the cause when one cannot."""
        await self._until(lambda: all(worker is not None and worker.loaded for worker in self._workers))

    def serve(self) -> None:
        """Let them accept connections."""
        self._serving = True
        self._send(Serve())

    async def run(self) -> int:
        """Until all have ended after `drain`; how often that was called. Raises InferplaneError when one dies again
        and again."""
        await self._until(lambda: self._num_drains > 0 and not self._alive())
        return self._num_drains

    def tell(self, news: EngineNews) -> None:
        """The engine is another."""
        self._send(news)

    def drain(self, seconds: float) -> None:
        """Let them end in good order, and kill what is left after so many seconds; the second time: end at once."""
        self._num_drains += 1
        # As long as anybody holds it, connections would be taken and never answered.
        self._listener.close()
        self._send(Drain())
        asyncio.get_running_loop().call_later(seconds, self._kill)
        self._changed.set()

    async def close(self) -> None:
        """End what is left, within CLOSE_SECONDS."""
        self._num_drains += 1
        for task in self._tasks:
            task.cancel()
        for worker in self._alive():
            worker.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._until(lambda: not self._alive(), fails=False), CLOSE_SECONDS)
        self._kill()
        self._rows.close()

    def _start(self, index: int) -> None:
        client_id = f"api{index}-{uuid.uuid4().hex[:8]}"
        descriptors = self._listener.fileno(), self._rows.descriptor
        launch = WorkerLaunch(
            index=index,
            client_id=client_id,
            plan=self._front_end.plan,
            config=self._front_end.config,
            provenance=self._front_end.provenance,
            timeline=self._front_end.timeline,
            listener=descriptors[0],
            cells=descriptors[1],
            num_rows=len(self._workers),
            news=self._news(),
        )
        self._workers[index] = WorkerProcess(
            index,
            client_id,
            msgspec.msgpack.encode(launch),
            descriptors,
            on_loaded=self._take_loaded,
            on_end=self._take_end,
        )

    def _take_loaded(self, worker: WorkerProcess) -> None:
        if self._serving:
            worker.send(Serve())
        self._changed.set()

    def _take_end(self, worker: WorkerProcess, cause: InferplaneError) -> None:
        index = worker.index
        self._workers[index] = None
        self._rows.forget(index)
        self._on_gone(worker.client_id)
        self._changed.set()
        if self._num_drains:
            return
        self._deaths[index] = 0 if time.monotonic() - worker.began > GOOD_SECONDS else self._deaths[index] + 1
        if not self._serving or self._deaths[index] >= MAX_DEATHS:
            self._failure = cause
            return
        delay = min(FIRST_DELAY * 2 ** self._deaths[index], MAX_DELAY)
        log.error("%s; it is started again in %.1f s; remedy: %s", cause.message, delay, cause.remedy)
        task = asyncio.get_running_loop().create_task(self._start_again(index, delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_again(self, index: int, delay: float) -> None:
        await asyncio.sleep(delay)
        if not self._num_drains:
            self._start(index)

    async def _until(self, condition: Callable[[], bool], *, fails: bool = True) -> None:
        while not condition():
            if fails and self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker is not None]

    def _send(self, message: ToWorker) -> None:
        for worker in self._alive():
            worker.send(message)

    def _kill(self) -> None:
        for worker in self._alive():
            worker.kill()
