"""One incarnation of an engine process and the channel to it. Knows neither requests nor what a message means."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from inferplane.channel.client_end import AsyncClientEnd
from inferplane.client.supervisor import EngineSupervisor
from inferplane.errors import EngineDead
from inferplane.log import get_logger
from inferplane.messages import Control, Hello

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from inferplane.channel.address import EngineAddress
    from inferplane.messages import FromEngine, ToEngine
    from inferplane.plan.types import Plan

log = get_logger(__name__)

SHUTDOWN_SECONDS = 5.0
"""How long an engine that was told to stop may take before it is made to."""


class EngineLink:
    """Starts when it is made, on a running event loop. `on_end(link, cause)` is called once, on the loop, when the
    engine or the channel to it is gone; not after `close`."""

    def __init__(
        self,
        plan: Plan,
        client_id: str,
        *,
        on_data: Callable[[FromEngine], None],
        on_alive: Callable[[FromEngine], None],
        on_end: Callable[[EngineLink, EngineDead], None],
        log_level: str = "INFO",
    ) -> None:
        self._on_end = on_end
        self._ended = False
        loop = asyncio.get_running_loop()

        def exited(cause: EngineDead) -> None:
            loop.call_soon_threadsafe(self.end, cause)

        self._supervisor = EngineSupervisor(plan, exited, log_level=log_level)
        self._end = AsyncClientEnd(self._supervisor.address, client_id)
        self._end.send(Hello(client_id=client_id))
        self._tasks = [
            self._spawn(loop, self._receive(self._end.receive, on_data)),
            self._spawn(loop, self._receive(self._end.receive_alive, on_alive)),
        ]

    @property
    def pid(self) -> int:
        """Of the engine process."""
        return self._supervisor.pid

    def send(self, message: ToEngine) -> None:
        """Queue a message; dropped when the engine is gone."""
        if not self._ended:
            self._end.send(message)

    def end(self, cause: EngineDead) -> None:
        """The engine is of no use any more; the first cause is the one that counts."""
        if not self._ended:
            self._ended = True
            self._on_end(self, cause)

    @property
    def address(self) -> EngineAddress:
        """Where others reach the engine."""
        return self._supervisor.address

    async def finish(self, client_id: str) -> None:
        """Ask the engine to end by itself, and give it SHUTDOWN_SECONDS."""
        self.send(Control(client_id=client_id, call_id=-1, name="shutdown"))
        await asyncio.to_thread(self._supervisor.wait, SHUTDOWN_SECONDS)

    async def close(self, *, at_once: bool = False) -> None:
        """End the process, with SIGKILL when it does not by itself or `at_once`; returns when it is gone."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if at_once:
            await asyncio.to_thread(self._supervisor.kill)
        await asyncio.to_thread(self._supervisor.stop)
        self._end.close()

    def _spawn(self, loop: asyncio.AbstractEventLoop, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = loop.create_task(job)
        task.add_done_callback(self._stopped)
        return task

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """No task ends by itself: without them nobody would be answered, and health would stay green."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the channel to the engine failed", exc_info=error)
            self.end(EngineDead(f"the channel to the engine failed: {error}", code="engine.channel"))

    async def _receive(
        self, receive: Callable[[], Coroutine[Any, Any, FromEngine]], take: Callable[[FromEngine], None]
    ) -> None:
        while True:
            message = await receive()
            if self._ended:
                # What it said last must not mix with what another engine says of the same requests.
                return
            take(message)
