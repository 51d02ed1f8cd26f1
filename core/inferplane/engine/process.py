"""The engine process: `python -m inferplane.engine.process`. Reads a Plan from stdin, serves an engine on a channel.

Knows the order of start-up and what ends the process; the work itself is Engine's and the runner's. The parent holds
the other end of stdin: when it closes, for whatever reason, this process ends, so that no kill leaves an orphan.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from inferplane.channel.address import EngineAddress, make_folder, remove_address
from inferplane.engine.step_failure import MEMORY_REMEDY, REPORT_REMEDY, is_out_of_memory
from inferplane.log import configure_logging, get_logger
from inferplane.messages import (
    Abort,
    Alive,
    Control,
    ControlReply,
    Delta,
    Failed,
    Hello,
    Outputs,
    Phase,
    Ready,
    Request,
)
from inferplane.plan.types import Plan
from inferplane.timeline import Timeline
from inferplane_api.errors import InferplaneError

if TYPE_CHECKING:
    from inferplane.channel.engine_end import EngineEnd
    from inferplane.engine.engine import Engine
    from inferplane.engine.worker_hooks import WorkerHooks
    from inferplane.messages import FromEngine, ToEngine
    from inferplane_api.runner import Runner

log = get_logger(__name__)

EXIT_FAILED = 70
"""The exit status after a failure that was reported (EX_SOFTWARE of sysexits)."""

EXIT_PARENT_GONE = 75
STATS_SECONDS = 0.5
ALIVE_SECONDS = 0.5
IDLE_POLL_SECONDS = 1.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent writes to stdin, length-prefixed (8 bytes, big endian), as MessagePack."""

    plan: Plan
    address: EngineAddress
    engine_id: int = 0
    log_level: str = "INFO"


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """One length-prefixed frame."""
    stream.write(struct.pack(">Q", len(data)) + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame, or None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack(">Q", head)
    data = stream.read(size)
    return data if len(data) == size else None


class Liveness:
    """A thread that tells every front end that the process lives and how long the present step has taken."""

    def __init__(self, address: EngineAddress, engine_id: int) -> None:
        self._address = address
        self._engine_id = engine_id
        self._phase: tuple[str, float] | None = ("starting", 0.0)
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def phase(self, name: str, share: float) -> None:
        """A long phase is under way; called from the main thread."""
        self._phase = (name, share)

    def watch(self, engine: Engine) -> None:
        """From now on publish the engine's progress."""
        self._engine = engine
        self._phase = None

    def _run(self) -> None:
        from inferplane.channel.engine_end import AlivePublisher

        publisher = AlivePublisher(self._address)
        while True:
            publisher.send(self._message())
            time.sleep(ALIVE_SECONDS)

    def _message(self) -> FromEngine:
        engine = self._engine
        if engine is None:
            name, share = self._phase or ("starting", 0.0)
            return Phase(client_id="", engine_id=self._engine_id, name=name, share=share)
        launched = engine.oldest_launch
        busy = 0.0 if launched is None else time.monotonic() - launched
        return Alive(
            client_id="",
            engine_id=self._engine_id,
            steps=engine.steps_completed,
            busy_seconds=busy,
            expected_seconds=engine.expected_seconds,
        )


class EngineProcess:
    """One engine between its channel and its runner."""

    def __init__(self, launch: Launch, channel: EngineEnd, liveness: Liveness, timeline: Timeline) -> None:
        self._launch = launch
        self._channel = channel
        self._liveness = liveness
        self._timeline = timeline
        self._clients: set[str] = set()
        self._stopping = False
        self._last_stats = 0.0
        self._hooks: WorkerHooks | None = None

    def start(self) -> tuple[Engine, Runner]:
        """Load everything; every phase is announced."""
        plan = self._launch.plan
        self._liveness.phase("import", 0.0)
        from inferplane.engine.engine import Engine
        from inferplane.engine.worker_hooks import WorkerHooks
        from inferplane.plan.load import Loader
        from inferplane.runner.create import create_runner

        self._timeline.mark("import")
        load = Loader(plan)
        runner = create_runner(plan, self._liveness.phase, load)
        self._timeline.mark("device")
        self._hooks = WorkerHooks(plan, load)
        self._hooks.start()
        self._liveness.phase("weights", 0.0)
        runner.load()
        self._timeline.mark("weights")
        num_pages = runner.allocate(plan.max_pages)
        self._timeline.mark("cache")
        self._liveness.phase("warm-up", 0.0)
        started = time.monotonic()
        runner.warmup()
        self._timeline.mark("warm-up")
        load.check()
        engine = Engine(plan, runner, num_pages)
        engine.pace.learn(time.monotonic() - started, 1)
        self._liveness.watch(engine)
        return engine, runner

    def stop(self, runner: Runner) -> None:
        """End in good order."""
        if self._hooks is not None:
            self._hooks.stop()
        runner.close()

    def serve(self, engine: Engine) -> None:
        """Run until told to stop."""
        while not self._stopping:
            busy = engine.has_work()
            for message in self._channel.receive(0.0 if busy else IDLE_POLL_SECONDS):
                self._handle(engine, message)
            if engine.has_work():
                self._send_deltas(engine, engine.step())

    def _handle(self, engine: Engine, message: ToEngine) -> None:
        if isinstance(message, Request):
            engine.submit(message)
        elif isinstance(message, Abort):
            engine.abort(message.client_id, message.request_ids)
        elif isinstance(message, Hello):
            self._greet(engine, message.client_id)
        else:
            self._control(engine, message)

    def _greet(self, engine: Engine, client_id: str) -> None:
        self._clients.add(client_id)
        self._channel.send(
            Ready(
                client_id=client_id,
                engine_id=self._launch.engine_id,
                capacity=engine.capacity,
                timeline=self._timeline.phases,
            )
        )

    def _control(self, engine: Engine, message: Control) -> None:
        result, error = None, None
        try:
            if message.name == "shutdown":
                self._stopping = True
            elif message.name == "forget_client":
                self._clients.discard(message.arguments["gone"])
                engine.abort_client(message.arguments["gone"])
            else:
                result = engine.control(message.name, message.arguments)
        except InferplaneError as failure:
            error = str(failure)
        self._channel.send(
            ControlReply(
                client_id=message.client_id,
                engine_id=self._launch.engine_id,
                call_id=message.call_id,
                result=result,
                error=error,
            )
        )

    def _send_deltas(self, engine: Engine, deltas: list[tuple[str, Delta]]) -> None:
        by_client: dict[str, list[Delta]] = {}
        started: dict[str, list[str]] = {}
        for client_id, request_id in engine.take_started():
            started.setdefault(client_id, []).append(request_id)
        for client_id, delta in deltas:
            by_client.setdefault(client_id, []).append(delta)
        now = time.monotonic()
        stats = None
        if now - self._last_stats > STATS_SECONDS or not engine.has_work():
            stats = engine.stats()
            self._last_stats = now
        targets = by_client.keys() | started.keys()
        if stats is not None:
            targets |= self._clients
        for client_id in targets:
            self._channel.send(
                Outputs(
                    client_id=client_id,
                    engine_id=self._launch.engine_id,
                    deltas=by_client.get(client_id, []),
                    stats=stats,
                    started=started.get(client_id, []),
                )
            )

    def fail(self, failure: Failed) -> None:
        """Tell every client why."""
        for client_id in self._clients:
            self._channel.send(msgspec.structs.replace(failure, client_id=client_id))


def describe_failure(error: BaseException, engine_id: int) -> Failed:
    """The cause as a person should read it."""
    if isinstance(error, InferplaneError):
        return Failed(
            client_id="", engine_id=engine_id, code=error.code or "engine.failed", message=error.message,
            remedy=error.remedy,
        )  # fmt: skip
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({frame[0].filename}:{frame[0].lineno})" if frame else ""
    remedy = MEMORY_REMEDY if is_out_of_memory(error) else REPORT_REMEDY
    return Failed(
        client_id="",
        engine_id=engine_id,
        code="engine.exception",
        message=f"{type(error).__name__}: {error}{where}",
        remedy=remedy,
    )


def _watch_parent(stream: BinaryIO, address: EngineAddress) -> None:
    while stream.read(1):
        pass
    remove_address(address)  # a parent that was killed could not
    os._exit(EXIT_PARENT_GONE)


def main() -> int:
    """Run one engine. The private copy of stdout carries at most one frame: the failure that ended the process."""
    # The parent decides when to stop and closes stdin; a signal to the whole group must not cut its drain short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a plugin prints must not mix with the frame
    data = read_frame(sys.stdin.buffer)
    if data is None:
        return EXIT_PARENT_GONE
    launch = msgspec.msgpack.decode(data, type=Launch)
    configure_logging(launch.log_level, process=f"engine {launch.engine_id}")
    threading.Thread(target=_watch_parent, args=(sys.stdin.buffer, launch.address), name="parent", daemon=True).start()
    make_folder(launch.address)
    timeline = Timeline()
    liveness = Liveness(launch.address, launch.engine_id)
    liveness.start()

    from inferplane.channel.engine_end import EngineEnd

    channel = EngineEnd(launch.address)
    process = EngineProcess(launch, channel, liveness, timeline)
    try:
        engine, runner = process.start()
        process.serve(engine)
        process.stop(runner)
    except BaseException as error:
        if not isinstance(error, InferplaneError):
            traceback.print_exc()
        failure = describe_failure(error, launch.engine_id)
        process.fail(failure)
        write_frame(status, msgspec.msgpack.encode(failure))
        channel.close()
        return EXIT_FAILED
    channel.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # daemon threads hold sockets; nothing is left to flush
