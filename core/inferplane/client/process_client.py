"""An EngineClient on an event loop, for an engine in a process of its own. Knows no HTTP."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from typing import TYPE_CHECKING, Any

from inferplane.client.admission import Admission
from inferplane.client.engine_link import EngineLink
from inferplane.client.restarts import Restarts, carried_over
from inferplane.client.streams import OpenRequest, Stream
from inferplane.errors import EngineDead, InferplaneError, ShuttingDown
from inferplane.log import get_logger
from inferplane.messages import Abort, Alive, Control, ControlReply, Delta, Failed, Outputs, Phase, Ready, Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.cells import Cells
    from inferplane.channel.address import EngineAddress
    from inferplane.client.interface import EngineState
    from inferplane.client.link import Link
    from inferplane.messages import FromEngine, Request
    from inferplane.plan.types import Plan
    from inferplane_api.runner import Capacity

log = get_logger(__name__)

PATIENCE = 10
"""A step may take this many times what its tokens should take before it counts as hung."""


class ProcessClient:
    """Implements EngineClient: `launch` starts the engine, `ready` waits for it."""

    def __init__(
        self,
        plan: Plan,
        *,
        max_queued: int = 1024,
        max_queued_tokens: int = 2**20,
        hang_seconds: float = 30.0,
        log_level: str = "INFO",
        restarts: int = 0,
        on_phase: Callable[[str, float], None] | None = None,
        on_change: Callable[[], None] | None = None,
        cells: Cells | None = None,
    ) -> None:
        """Both are called on the event loop: on_phase(name, share) for every announced phase of a start, on_change when
        the engine's state or address is another. cells: the counts of all front ends of this engine."""
        self.client_id = f"api-{uuid.uuid4().hex[:8]}"
        self.state: EngineState = "starting"
        self.failure: InferplaneError | None = None
        self.stats = Stats()
        self.phase = "starting"
        self.engine_timeline: list[tuple[str, float]] = []
        self._plan = plan
        self._hang_seconds = hang_seconds
        self._log_level = log_level
        self._on_phase = on_phase
        self._on_change = on_change
        self._admission = Admission(plan.limits.max_num_seqs, max_queued, max_queued_tokens, cells=cells)
        self._restarts = Restarts(restarts)
        self.stats_before = Stats()
        """Of the engines before this one."""
        self._open: dict[str, OpenRequest] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._capacity: Capacity | None = None
        self._ready: asyncio.Future[None] | None = None
        self._link: Link | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_alive = time.monotonic()
        self._refusing = False

    @property
    def capacity(self) -> Capacity:
        assert self._capacity is not None, "the engine is not ready"
        return self._capacity

    @property
    def engine_address(self) -> EngineAddress | None:
        """Of the present engine, once launched."""
        return None if self._link is None else self._link.address

    @property
    def num_open(self) -> int:
        """Sequences that were sent and have not ended."""
        return len(self._open)

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again."""
        return self._restarts.num_started

    def launch(self) -> None:
        """Start the engine process and begin to listen; needs a running event loop."""
        self._ready = asyncio.get_running_loop().create_future()
        self._connect()
        self._spawn(self._watch())

    async def ready(self) -> None:
        """Wait for the engine. Raises EngineDead with the cause when it dies before."""
        assert self._ready is not None, "launch() comes first"
        await self._ready

    def submit(self, requests: list[Request]) -> Stream:
        self._require_alive()
        self._admission.check(len(requests), sum(len(request.prompt_token_ids) for request in requests))
        stream = Stream(requests, self.forget)
        for index, request in enumerate(requests):
            self._open[request.request_id] = OpenRequest(request, stream, index)
            self._admission.enter(len(request.prompt_token_ids))
            if not self._restarting:
                self._send(request)
        return stream

    def forget(self, request_ids: list[str]) -> None:
        """Stop following these requests and tell the engine to abort the ones that run."""
        known = [request_id for request_id in request_ids if self._close_request(request_id) is not None]
        if known and self.state in ("ready", "hung"):
            self._send(Abort(client_id=self.client_id, request_ids=known))

    async def control(self, name: str, **arguments: Any) -> Any:
        self._require_alive()
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._send(Control(client_id=self.client_id, call_id=call_id, name=name, arguments=arguments))
        return await future

    def release(self, client_id: str) -> None:
        """Another front end of the engine is gone: what it had there is ended."""
        self._send(Control(client_id=self.client_id, call_id=-1, name="forget_client", arguments={"gone": client_id}))

    def abort_open(self) -> None:
        """End what runs or waits with finish_reason "abort", and take nothing more: the server shuts down."""
        self._refusing = True
        for request_id, each in list(self._open.items()):
            each.stream.deliver(each.index, Delta(request_id=request_id, finish_reason="abort"))
        self.forget(list(self._open))

    async def close(self, *, at_once: bool = False) -> None:
        if self.state == "closed":
            return
        was, self.state = self.state, "closed"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            if was == "ready" and not at_once:
                await self._link.finish(self.client_id)
            await self._link.close(at_once=at_once)

    @property
    def _restarting(self) -> bool:
        """True while what is open will be sent once the next engine is ready."""
        return self.state == "starting" and self.num_restarts > 0

    def _send(self, message: Any) -> None:
        if self._link is not None:
            self._link.send(message)

    def _require_alive(self) -> None:
        if self._refusing or self.state == "closed":
            raise ShuttingDown("the server is shutting down", code="server.closing", remedy="use another one")
        if self.state in ("dead", "hung"):
            cause = self.failure if isinstance(self.failure, EngineDead) else EngineDead("the engine is gone")
            raise cause.again()

    def _connect(self) -> None:
        self._last_alive = time.monotonic()
        self._link = self._new_link()
        self._changed()

    def _new_link(self) -> Link:
        return EngineLink(
            self._plan,
            self.client_id,
            on_data=self._take,
            on_alive=self._take_alive,
            on_end=self._ended,
            log_level=self._log_level,
        )

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _spawn(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """A process that is stopped sends nothing at all."""
        while True:
            await asyncio.sleep(1.0)
            silent = time.monotonic() - self._last_alive
            if self.state == "ready" and silent > self._hang_seconds:
                self._hang(f"the engine process has been silent for {silent:.0f} s")

    def _take_alive(self, message: FromEngine) -> None:
        self._last_alive = time.monotonic()
        if isinstance(message, Phase):
            if message.name != self.phase:
                self.phase = message.name
                log.debug("engine %d: %s", message.engine_id, message.name)
            if self._on_phase is not None:
                self._on_phase(message.name, message.share)
        elif isinstance(message, Alive):
            self._judge(message)

    def _judge(self, alive: Alive) -> None:
        limit = max(self._hang_seconds, PATIENCE * alive.expected_seconds)
        if alive.busy_seconds > limit:
            self._hang(f"the engine has not completed a step for {alive.busy_seconds:.0f} s (limit {limit:.0f} s)")
        elif self.state == "hung":
            log.warning("the engine completes steps again")
            self.state, self.failure = "ready", None
            self._changed()

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Outputs):
            if message.stats is not None:
                self.stats = message.stats
                if self.num_restarts:
                    self.stats = carried_over(self.stats_before, message.stats)
            for request_id in message.started:
                self._start_request(request_id)
            self._deliver(message.deltas)
        elif isinstance(message, Ready):
            self._begin(message)
        elif isinstance(message, ControlReply):
            future = self._calls.pop(message.call_id, None)
            if future is not None and not future.done():
                if message.error is None:
                    future.set_result(message.result)
                else:
                    future.set_exception(InferplaneError(message.error, code="control.failed"))
        elif isinstance(message, Failed) and self._link is not None:
            self._link.end(EngineDead(message.message, code=message.code, remedy=message.remedy))

    def _begin(self, message: Ready) -> None:
        self._capacity = message.capacity
        self.engine_timeline = message.timeline
        self.state, self.failure = "ready", None
        self._changed()
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
            return
        log.info("the engine runs again; %d waiting requests are given to it", len(self._open))
        for each in self._open.values():
            self._send(each.request)

    def _deliver(self, deltas: list[Delta]) -> None:
        get = self._open.get
        for delta in deltas:
            each = get(delta.request_id)
            if each is None:
                continue
            each.produced = True
            if delta.finish_reason is not None:
                self._close_request(delta.request_id)
            each.stream.deliver(each.index, delta)

    def _start_request(self, request_id: str) -> None:
        each = self._open.get(request_id)
        if each is not None and not each.started:
            each.started = True
            self._admission.start(len(each.request.prompt_token_ids))

    def _close_request(self, request_id: str) -> OpenRequest | None:
        each = self._open.pop(request_id, None)
        if each is not None:
            self._admission.leave(len(each.request.prompt_token_ids), started=each.started)
        return each

    def _hang(self, text: str) -> None:
        if self.state != "ready":
            return
        cause = EngineDead(
            text, code="engine.hung", remedy="restart the server; raise --hang-timeout if steps are this long"
        )
        if self._restarts.left and self._link is not None:
            self._link.end(cause)
            return
        self.state, self.failure = "hung", cause
        log.error("%s (error id %s); remedy: %s", cause.message, cause.error_id, cause.remedy)
        running = list(self._open)
        self._fail_open(cause)
        self._send(Abort(client_id=self.client_id, request_ids=running))
        self._changed()

    def _ended(self, link: Link, cause: EngineDead) -> None:
        if link is not self._link or self.state in ("dead", "closed"):
            return
        if self._ready is not None and not self._ready.done():
            self.state, self.failure = "dead", cause
            self._ready.set_exception(cause)
            self._fail_open(cause)
            return
        delay = self._restarts.next_delay()
        if delay is not None:
            self._restart(link, cause, delay)
            return
        self.state, self.failure = "dead", cause
        spent = f" after {self.num_restarts} restarts" if self.num_restarts else ""
        log.error("the engine died%s (error id %s): %s; remedy: %s", spent, cause.error_id, cause.message, cause.remedy)
        self._fail_open(cause)
        self._changed()

    def _restart(self, link: Link, cause: EngineDead, delay: float) -> None:
        # The counters go on, and nothing runs meanwhile.
        self.stats_before = carried_over(self.stats, Stats(engine_restarts=1))
        kept = {request_id for request_id, each in self._open.items() if _can_be_repeated(each)}
        log.error(
            "the engine died (error id %s): %s; remedy: %s; it is started again in %.1f s (%d more), %d of %d requests "
            "wait for it",
            cause.error_id, cause.message, cause.remedy, delay, self._restarts.left, len(kept), len(self._open),
        )  # fmt: skip
        self._await_engine(cause)
        self._spawn(self._connect_again(link, delay))
        self._changed()

    def _await_engine(self, cause: EngineDead) -> None:
        """Until the next engine is ready, keep what it can do from the start, and fail the rest."""
        self.state, self.failure, self.phase = "starting", cause, "restarting"
        self.stats = self.stats_before
        self._fail_open(cause, keep={request_id for request_id, each in self._open.items() if _can_be_repeated(each)})
        for each in self._open.values():
            if each.started:
                each.num_deaths += 1

    async def _connect_again(self, link: Link, delay: float) -> None:
        # It may hang, or hold the device: it must be gone before another one starts.
        await link.close(at_once=True)
        await asyncio.sleep(delay)
        self._connect()

    def _fail_open(self, cause: EngineDead, keep: set[str] | frozenset[str] = frozenset()) -> None:
        for request_id in [each for each in self._open if each not in keep]:
            each = self._close_request(request_id)
            if each is not None:
                each.stream.fail(cause.again())
        for future in self._calls.values():
            if not future.done():
                future.set_exception(cause.again())
        self._calls.clear()


def _can_be_repeated(each: OpenRequest) -> bool:
    """Nobody has got a token of it, so none can come twice; and it was not in the batch of two engines that died, which
    makes it a suspect."""
    return not each.produced and each.num_deaths == 0
