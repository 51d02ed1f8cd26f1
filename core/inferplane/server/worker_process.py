"""One API process as its parent has it: started as `python -m`, told things, and known at once when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec

from inferplane.engine.process import read_frame, write_frame
from inferplane.errors import InferplaneError
from inferplane.messages import Failed
from inferplane.server.worker_messages import FromWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferplane.server.worker_messages import ToWorker

MODULE = "inferplane.api_process"


class WorkerProcess:
    """Made on an event loop, where `on_loaded(worker)` and, once, `on_end(worker, cause)` are called."""

    def __init__(
        self,
        index: int,
        client_id: str,
        launch: bytes,
        descriptors: Sequence[int],
        *,
        on_loaded: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerProcess, InferplaneError], None],
    ) -> None:
        """launch: an encoded WorkerLaunch; descriptors: what the process inherits."""
        self.index = index
        self.client_id = client_id
        self.began = time.monotonic()
        self.loaded = False
        self._loop = asyncio.get_running_loop()
        self._on_loaded, self._on_end = on_loaded, on_end
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=descriptors,
        )
        # A pipe that is full makes its writer wait: never the event loop.
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outbox.put(launch)
        for job in (self._write, self._wait):
            threading.Thread(target=job, name=f"api {index}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Dropped when the process is gone."""
        self._outbox.put(msgspec.msgpack.encode(message))

    def close(self) -> None:
        """Close the pipe behind what was sent, which ends the process."""
        self._outbox.put(None)

    def kill(self) -> None:
        """SIGKILL to the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _write(self) -> None:
        pipe = cast("BinaryIO", self._process.stdin)
        with contextlib.suppress(OSError):  # it died: the waiting thread tells why
            while (data := self._outbox.get()) is not None:
                write_frame(pipe, data)
        with contextlib.suppress(OSError):
            pipe.close()

    def _wait(self) -> None:
        failure: Failed | None = None
        with cast("BinaryIO", self._process.stdout) as status:
            while (frame := read_frame(status)) is not None:
                message = msgspec.msgpack.decode(frame, type=FromWorker)
                if isinstance(message, Failed):
                    failure = message
                else:
                    self._call(self._take_loaded)
        cause = self._cause(self._process.wait(), failure)
        self.close()
        self._call(lambda: self._on_end(self, cause))

    def _take_loaded(self) -> None:
        self.loaded = True
        self._on_loaded(self)

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function)

    def _cause(self, code: int, failure: Failed | None) -> InferplaneError:
        name = f"API process {self.index} (pid {self.pid})"
        if failure is not None:
            return InferplaneError(f"{name}: {failure.message}", code=failure.code, remedy=failure.remedy)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        killed = code == -signal.SIGKILL
        remedy = "if nobody did, the system ran out of memory" if killed else "see the lines above"
        return InferplaneError(f"{name} {how}", code="api.ended", remedy=remedy)
