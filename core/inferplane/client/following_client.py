"""An EngineClient for an engine that belongs to another process, which tells of its state. Knows no HTTP.

It judges nothing by itself, so that all front ends of an engine say the same of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from inferplane.channel.address import EngineAddress
from inferplane.channel.client_end import AsyncClientEnd
from inferplane.client.interface import EngineState
from inferplane.client.process_client import ProcessClient
from inferplane.errors import EngineDead
from inferplane.log import get_logger
from inferplane.messages import Abort, Failed, Hello, Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.cells import Cells
    from inferplane.client.link import Link
    from inferplane.messages import FromEngine, ToEngine
    from inferplane.plan.types import Plan

log = get_logger(__name__)


class EngineNews(msgspec.Struct, frozen=True, kw_only=True, tag="engine"):
    """What the owner of an engine tells of it, whenever it is another."""

    state: EngineState
    address: EngineAddress
    num_restarts: int = 0
    stats: Stats
    stats_before: Stats
    """Of the engines before the present one."""
    cause: list[str] = []
    """Message, code, remedy and error id of what is wrong."""


def news_of(client: ProcessClient) -> EngineNews:
    """For the followers of a launched client."""
    address, failure = client.engine_address, client.failure
    assert address is not None, "launch() comes first"
    cause = [failure.message, failure.code, failure.remedy, failure.error_id] if isinstance(failure, EngineDead) else []
    return EngineNews(
        state=client.state,
        address=address,
        num_restarts=client.num_restarts,
        stats=client.stats,
        stats_before=client.stats_before,
        cause=cause,
    )


class FollowingClient(ProcessClient):
    """`launch` connects; `learn` is called with all news, in their order."""

    def __init__(
        self,
        plan: Plan,
        news: EngineNews,
        client_id: str,
        cells: Cells,
        *,
        max_queued: int,
        max_queued_tokens: int,
        on_broken: Callable[[EngineDead], None],
    ) -> None:
        """on_broken(cause): the channel failed on this side, and nothing can be done about it here."""
        super().__init__(
            plan,
            max_queued=max_queued,
            max_queued_tokens=max_queued_tokens,
            hang_seconds=float("inf"),
            on_change=lambda: self._moved.set(),
            cells=cells,
        )
        self.client_id = client_id
        self._on_broken = on_broken
        self._address = news.address
        self._owner_state = news.state
        self._moved = asyncio.Event()
        self._note(news)

    async def caught_up(self) -> None:
        """Wait until an engine that its owner calls ready has greeted this side too: the two come by different ways."""
        while self._owner_state == "ready" and self.state == "starting":
            self._moved.clear()
            await self._moved.wait()

    def learn(self, news: EngineNews) -> None:
        """The engine died, hangs, goes on, or is another one."""
        self._owner_state = news.state
        cause = EngineDead("the engine is gone", code="engine.dead")
        if news.cause:
            message, code, remedy, error_id = news.cause
            cause = EngineDead(message, code=code, remedy=remedy, error_id=error_id)
        died = news.num_restarts > self.num_restarts
        if died:
            self._note(news)
            self._await_engine(cause)
            log.info("%d requests wait for the engine to be started again", self.num_open)
        if news.address != self._address and self._link is not None:
            self._address = news.address
            self._spawn(self._follow(self._link))
        elif news.state == "dead":
            self.state, self.failure = "dead", cause
            self._fail_open(cause)
        elif news.state == "hung" and self.state == "ready":
            self.state, self.failure = "hung", cause
            running = list(self._open)
            self._fail_open(cause)
            self._send(Abort(client_id=self.client_id, request_ids=running))
        elif news.state == "ready" and self.state == "hung":
            self.state, self.failure = "ready", None
        self._moved.set()

    def _note(self, news: EngineNews) -> None:
        self.stats, self.stats_before = news.stats, news.stats_before
        self._restarts.num_started = news.num_restarts

    def _new_link(self) -> Link:
        return AttachedLink(self._address, self.client_id, on_data=self._take, on_end=self._broken)

    async def _follow(self, link: Link) -> None:
        await link.close()
        if link is self._link:
            self._connect()

    def _take(self, message: FromEngine) -> None:
        # The engine tells its owner too, who knows whether there will be another.
        if not isinstance(message, Failed):
            super()._take(message)

    def _broken(self, link: Link, cause: EngineDead) -> None:
        if link is self._link:
            self._on_broken(cause)


class AttachedLink:
    """A way to an engine that is another process's. Implements Link."""

    def __init__(
        self,
        address: EngineAddress,
        client_id: str,
        *,
        on_data: Callable[[FromEngine], None],
        on_end: Callable[[Link, EngineDead], None],
    ) -> None:
        self.address = address
        self._on_data = on_data
        self._on_end = on_end
        self._closed = False
        self._end = AsyncClientEnd(address, client_id, alive=False)
        self._end.send(Hello(client_id=client_id))
        self._task = asyncio.get_running_loop().create_task(self._receive())
        self._task.add_done_callback(self._stopped)

    def send(self, message: ToEngine) -> None:
        if not self._closed:
            self._end.send(message)

    def end(self, cause: EngineDead) -> None:
        if not self._closed:
            self._closed = True
            self._on_end(self, cause)

    async def finish(self, client_id: str) -> None:
        """The engine is not ours to end."""

    async def close(self, *, at_once: bool = False) -> None:
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end.close()

    async def _receive(self) -> None:
        while True:
            message = await self._end.receive()
            if self._closed:
                return
            self._on_data(message)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the channel to the engine failed", exc_info=error)
            self.end(EngineDead(f"the channel to the engine failed: {error}", code="engine.channel"))
