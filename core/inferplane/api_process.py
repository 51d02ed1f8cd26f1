"""One of several API processes, `python -m inferplane.api_process`. Its parent owns the engine and the listener.

The parent holds the other end of stdin: when it closes, for whatever reason, this process ends, so that no kill leaves
an orphan.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from inferplane.cells import Cells, SharedRows
from inferplane.client.following_client import EngineNews, FollowingClient
from inferplane.config import Config
from inferplane.engine.process import (
    EXIT_FAILED,
    EXIT_PARENT_GONE,
    describe_failure,
    read_frame,
    write_frame,
)
from inferplane.launch import Planned, prepare_front_end
from inferplane.launch_types import Service
from inferplane.log import configure_logging, get_logger
from inferplane.server.worker_messages import Drain, Loaded, ToWorker, WorkerLaunch

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.errors import EngineDead

log = get_logger(__name__)


class _Commands:
    """What the parent says, handed to whoever does it; made on the event loop, fed by a thread."""

    def __init__(self) -> None:
        self.serve = asyncio.Event()
        self.client: FollowingClient | None = None
        self.stop: Callable[[], object] | None = None
        self._drains = 0

    def take(self, message: ToWorker) -> None:
        """On the event loop."""
        if isinstance(message, EngineNews):
            assert self.client is not None
            self.client.learn(message)
        elif isinstance(message, Drain):
            self._drains += 1
            self.serve.set()
            if self.stop is not None:
                self.stop()
        else:
            self.serve.set()

    def stopped_by(self, stop: Callable[[], object]) -> None:
        """stop(): called for every Drain, those included that have come."""
        self.stop = stop
        for _ in range(self._drains):
            stop()


async def _run(launch: WorkerLaunch, status: BinaryIO) -> int:
    config = Config.model_validate_json(launch.config)
    cells = Cells(SharedRows(launch.cells, launch.num_rows).rows, own=launch.index)
    loop, commands = asyncio.get_running_loop(), _Commands()
    broken = asyncio.Event()

    def give_up(cause: EngineDead) -> None:
        log.error("%s", cause.message)
        broken.set()
        commands.take(Drain())

    commands.client = client = FollowingClient(
        launch.plan,
        launch.news,
        launch.client_id,
        cells,
        max_queued=config.scheduler.max_num_queued_reqs,
        max_queued_tokens=config.scheduler.max_num_queued_tokens,
        on_broken=give_up,
    )
    client.launch()

    def read() -> None:
        while (frame := read_frame(sys.stdin.buffer)) is not None:
            message = msgspec.msgpack.decode(frame, type=ToWorker)
            loop.call_soon_threadsafe(commands.take, message)
        os._exit(EXIT_PARENT_GONE)

    threading.Thread(target=read, name="parent", daemon=True).start()
    planned = Planned(config, launch.plan, launch.provenance, launch.timeline)
    prepared = await asyncio.to_thread(prepare_front_end, planned)
    from inferplane.server.app import create_app
    from inferplane.server.run import run_app

    app = create_app(Service(prepared, client, cells))
    write_frame(status, msgspec.msgpack.encode(Loaded()))
    await commands.serve.wait()
    catching_up = asyncio.create_task(client.caught_up())
    commands.stopped_by(catching_up.cancel)
    await asyncio.wait([catching_up])
    listener = socket.socket(fileno=launch.listener)

    def stopped_by(stop: Callable[[int], None]) -> None:
        commands.stopped_by(lambda: stop(signal.SIGTERM))

    await run_app(app, listener, config.server, client, stopped_by=stopped_by, listens_alone=False)
    return EXIT_FAILED if broken.is_set() else 0


def main() -> int:
    """Run one API process. The private copy of stdout carries frames to the parent."""
    # The parent decides when to stop; a signal to the whole group must not cut its drain short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a middleware prints must not mix with the frames
    data = read_frame(sys.stdin.buffer)
    if data is None:
        return EXIT_PARENT_GONE
    launch = msgspec.msgpack.decode(data, type=WorkerLaunch)
    configure_logging(Config.model_validate_json(launch.config).server.log_level, process=f"api {launch.index}")
    try:
        return asyncio.run(_run(launch, status))
    except BaseException as error:
        failure = describe_failure(error, 0)
        if failure.code == "engine.exception":
            traceback.print_exc()
        write_frame(status, msgspec.msgpack.encode(failure))
        return EXIT_FAILED


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread waits for the parent's next word
