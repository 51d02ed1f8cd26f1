"""An engine for a caller that waits: in this process, or in a process of its own. Knows no text."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

from inferplane.errors import EngineDead
from inferplane.messages import Abort, Failed, Hello, Outputs, Ready, Stats

if TYPE_CHECKING:
    from inferplane.messages import Delta, Request
    from inferplane.plan.types import Plan
    from inferplane_api.runner import Capacity


class EngineDriver(Protocol):
    """What the offline API runs on."""

    client_id: str
    capacity: Capacity

    def submit(self, request: Request) -> None:
        """Queue a request."""

    def abort(self, request_ids: list[str]) -> None:
        """Stop requests."""

    def poll(self) -> list[Delta]:
        """Do, or wait for, some work. Raises EngineDead."""

    def stats(self) -> Stats:
        """Counters since the start, and gauges."""

    def close(self) -> None:
        """Stop the engine."""


class LocalDriver:
    """The engine runs in this process and thread: nothing happens between two polls."""

    def __init__(self, plan: Plan) -> None:
        from inferplane.engine.engine import Engine
        from inferplane.engine.worker_hooks import WorkerHooks
        from inferplane.plan.load import Loader
        from inferplane.runner.create import create_runner

        self.client_id = "local"
        load = Loader(plan)
        self._runner = create_runner(plan, lambda phase, share: None, load)
        self._hooks = WorkerHooks(plan, load)
        self._hooks.start()
        self._runner.load()
        num_pages = self._runner.allocate(plan.max_pages)
        self._runner.warmup()
        load.check()
        self._engine = Engine(plan, self._runner, num_pages)
        self.capacity = self._engine.capacity

    def submit(self, request: Request) -> None:
        self._engine.submit(request)

    def abort(self, request_ids: list[str]) -> None:
        self._engine.abort(self.client_id, request_ids)

    def poll(self) -> list[Delta]:
        return [delta for _, delta in self._engine.step()]

    def stats(self) -> Stats:
        return self._engine.stats()

    def close(self) -> None:
        self._hooks.stop()
        self._runner.close()


class ProcessDriver:
    """The engine runs in a process of its own."""

    def __init__(self, plan: Plan) -> None:
        from inferplane.channel.client_end import BlockingClientEnd
        from inferplane.client.supervisor import EngineSupervisor

        self.client_id = f"offline-{uuid.uuid4().hex[:8]}"
        self._cause: EngineDead | None = None
        self._stats = Stats()
        self._supervisor = EngineSupervisor(plan, self._on_exit)
        self._end = BlockingClientEnd(self._supervisor.address, self.client_id)
        self._end.send(Hello(client_id=self.client_id))
        self.capacity = self._wait_ready()

    def submit(self, request: Request) -> None:
        self._end.send(request)

    def abort(self, request_ids: list[str]) -> None:
        self._end.send(Abort(client_id=self.client_id, request_ids=request_ids))

    def poll(self) -> list[Delta]:
        message = self._end.receive(0.5)
        if isinstance(message, Outputs):
            self._stats = message.stats or self._stats
            return message.deltas
        if isinstance(message, Failed):
            raise EngineDead(message.message, code=message.code, remedy=message.remedy)
        if message is None and self._cause is not None:
            raise self._cause
        return []

    def stats(self) -> Stats:
        return self._stats

    def close(self) -> None:
        self._supervisor.stop()
        self._end.close()

    def _wait_ready(self) -> Capacity:
        while True:
            message = self._end.receive(0.2)
            if isinstance(message, Ready):
                return message.capacity
            if message is None and self._cause is not None:
                self.close()
                raise self._cause

    def _on_exit(self, cause: EngineDead) -> None:
        self._cause = cause
