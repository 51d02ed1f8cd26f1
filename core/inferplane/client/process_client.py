"""An EngineClient on an event loop, for an engine in a process of its own. Knows no HTTP."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from typing import TYPE_CHECKING, Any

from inferplane.channel.client_end import AsyncClientEnd
from inferplane.client.supervisor import EngineSupervisor
from inferplane.errors import EngineDead, InferplaneError, InvalidValue, QueueFull
from inferplane.log import get_logger
from inferplane.messages import Abort, Alive, Control, ControlReply, Failed, Hello, Outputs, Phase, Ready, Stats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from inferplane.client.interface import EngineState
    from inferplane.messages import Delta, FromEngine, Request
    from inferplane.plan.types import Plan
    from inferplane_api.runner import Capacity

log = get_logger(__name__)

PATIENCE = 10
"""A step may take this many times what its tokens should take before it counts as hung."""


class _Stream:
    """See RequestStream."""

    def __init__(self, client: ProcessClient, requests: list[Request]) -> None:
        self._client = client
        self._ids = [request.request_id for request in requests]
        self._open = set(range(len(requests)))
        self._queue: asyncio.Queue[tuple[int, Delta] | EngineDead] = asyncio.Queue()

    def deliver(self, item: tuple[int, Delta] | EngineDead) -> None:
        self._queue.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        try:
            while self._open:
                item = await self._queue.get()
                if isinstance(item, EngineDead):
                    self._open.clear()
                    raise item
                index, delta = item
                if index not in self._open:
                    continue
                if delta.finish_reason is not None:
                    self._open.discard(index)
                yield index, delta
        finally:
            self.abort()

    def abort(self, index: int | None = None) -> None:
        indices = list(self._open) if index is None else [index] if index in self._open else []
        self._open.difference_update(indices)
        self._client.forget([self._ids[i] for i in indices])


class ProcessClient:
    """Implements EngineClient: `launch` starts the engine, `ready` waits for it."""

    def __init__(
        self, plan: Plan, *, max_queued: int = 1024, hang_seconds: float = 30.0, log_level: str = "INFO"
    ) -> None:
        self.client_id = f"api-{uuid.uuid4().hex[:8]}"
        self.state: EngineState = "starting"
        self.failure: InferplaneError | None = None
        self.stats = Stats()
        self.phase = "starting"
        self.engine_timeline: list[tuple[str, float]] = []
        self._plan = plan
        self._max_open = max_queued + plan.limits.max_num_seqs
        self._hang_seconds = hang_seconds
        self._log_level = log_level
        self._streams: dict[str, tuple[_Stream, int]] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._capacity: Capacity | None = None
        self._ready: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last_alive = time.monotonic()
        self._supervisor: EngineSupervisor | None = None

    @property
    def capacity(self) -> Capacity:
        assert self._capacity is not None, "the engine is not ready"
        return self._capacity

    @property
    def engine_pid(self) -> int | None:
        """Of the engine process, once launched."""
        return None if self._supervisor is None else self._supervisor.pid

    def launch(self) -> None:
        """Start the engine process and begin to listen; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()

        def on_exit(cause: EngineDead) -> None:
            loop.call_soon_threadsafe(self._died, cause)

        self._supervisor = EngineSupervisor(
            self._plan,
            on_exit,
            log_level=self._log_level,
        )
        self._end = AsyncClientEnd(self._supervisor.address, self.client_id)
        self._end.send(Hello(client_id=self.client_id))
        for job in (self._receive(), self._receive_alive(), self._watch()):
            self._spawn(job)

    async def ready(self) -> None:
        """Wait for the engine. Raises EngineDead with the cause when it dies before."""
        assert self._ready is not None, "launch() comes first"
        await self._ready

    def submit(self, requests: list[Request]) -> _Stream:
        self._require_alive()
        if len(requests) > self._max_open:
            raise InvalidValue(
                "n", len(requests), f"a request may have at most {self._max_open} sequences here, prompts times n",
                remedy="send several requests, or start the server with a larger --max-num-queued-reqs",
            )  # fmt: skip
        if len(self._streams) + len(requests) > self._max_open:
            raise QueueFull(
                f"{len(self._streams)} requests are running or waiting, at most {self._max_open} may",
                retry_after=1.0,
            )
        stream = _Stream(self, requests)
        for index, request in enumerate(requests):
            self._streams[request.request_id] = (stream, index)
            self._end.send(request)
        return stream

    def forget(self, request_ids: list[str]) -> None:
        """Stop following these requests and tell the engine to abort the ones that run."""
        known = [request_id for request_id in request_ids if self._streams.pop(request_id, None) is not None]
        if known and self.state in ("ready", "hung"):
            self._end.send(Abort(client_id=self.client_id, request_ids=known))

    async def control(self, name: str, **arguments: Any) -> Any:
        self._require_alive()
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._end.send(Control(client_id=self.client_id, call_id=call_id, name=name, arguments=arguments))
        return await future

    async def close(self) -> None:
        if self.state == "closed":
            return
        was, self.state = self.state, "closed"
        for task in self._tasks:
            task.cancel()
        if self._supervisor is not None:
            if was == "ready":
                self._end.send(Control(client_id=self.client_id, call_id=-1, name="shutdown"))
                await asyncio.to_thread(self._supervisor.wait, 5.0)
            await asyncio.to_thread(self._supervisor.stop)
            self._end.close()

    def _require_alive(self) -> None:
        if self.state in ("dead", "hung"):
            cause = self.failure or EngineDead("the engine is gone")
            raise EngineDead(cause.message, code=cause.code, remedy=cause.remedy)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """None of the tasks ends by itself: without them nobody would be answered, and health would stay green."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the channel to the engine failed", exc_info=error)
            self._died(EngineDead(f"the channel to the engine failed: {error}", code="engine.channel"))

    async def _receive(self) -> None:
        while True:
            self._take(await self._end.receive())

    async def _receive_alive(self) -> None:
        while True:
            message = await self._end.receive_alive()
            self._last_alive = time.monotonic()
            if isinstance(message, Phase) and message.name != self.phase:
                self.phase = message.name
                log.debug("engine %d: %s", message.engine_id, message.name)
            elif isinstance(message, Alive):
                self._judge(message)

    def _judge(self, alive: Alive) -> None:
        limit = max(self._hang_seconds, PATIENCE * alive.expected_seconds)
        if alive.busy_seconds > limit:
            self._hang(f"the engine has not completed a step for {alive.busy_seconds:.0f} s (limit {limit:.0f} s)")
        elif self.state == "hung":
            log.warning("the engine completes steps again")
            self.state, self.failure = "ready", None

    async def _watch(self) -> None:
        """A process that is stopped sends nothing at all."""
        while True:
            await asyncio.sleep(1.0)
            silent = time.monotonic() - self._last_alive
            if self.state == "ready" and silent > self._hang_seconds:
                self._hang(f"the engine process has been silent for {silent:.0f} s")

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Outputs):
            if message.stats is not None:
                self.stats = message.stats
            for delta in message.deltas:
                found = self._streams.get(delta.request_id)
                if found is None:
                    continue
                if delta.finish_reason is not None:
                    del self._streams[delta.request_id]
                found[0].deliver((found[1], delta))
        elif isinstance(message, Ready):
            self._capacity = message.capacity
            self.engine_timeline = message.timeline
            self.state = "ready"
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif isinstance(message, ControlReply):
            future = self._calls.pop(message.call_id, None)
            if future is not None and not future.done():
                if message.error is None:
                    future.set_result(message.result)
                else:
                    future.set_exception(InferplaneError(message.error, code="control.failed"))
        elif isinstance(message, Failed):
            self._died(EngineDead(message.message, code=message.code, remedy=message.remedy))

    def _hang(self, text: str) -> None:
        if self.state != "ready":
            return
        cause = EngineDead(
            text, code="engine.hung", remedy="restart the server; raise --hang-timeout if steps are this long"
        )
        self.state, self.failure = "hung", cause
        log.error("%s; remedy: %s", cause.message, cause.remedy)
        running = list(self._streams)
        self._fail_open(cause)
        self._end.send(Abort(client_id=self.client_id, request_ids=running))

    def _died(self, cause: EngineDead) -> None:
        if self.state in ("dead", "closed"):
            return
        self.state, self.failure = "dead", cause
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(cause)
        else:
            log.error("the engine died: %s; remedy: %s", cause.message, cause.remedy)
        self._fail_open(cause)

    def _fail_open(self, cause: EngineDead) -> None:
        for stream, _ in list(self._streams.values()):
            stream.deliver(EngineDead(cause.message, code=cause.code, remedy=cause.remedy))
        self._streams.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDead(cause.message, code=cause.code, remedy=cause.remedy))
        self._calls.clear()
