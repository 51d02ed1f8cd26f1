"""Starts one engine process and knows, at once, when and why it ended. Knows nothing of requests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec

from inferplane.channel.address import EngineAddress, choose_address, remove_address
from inferplane.engine.process import Launch, read_frame, write_frame
from inferplane.errors import EngineDead
from inferplane.messages import Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.plan.types import Plan

OUT_OF_MEMORY_HINT = "the system may have run out of memory: lower --max-model-len or --kv-cache-memory-bytes"


class EngineSupervisor:
    """One engine process. `on_exit(cause)` is called from a thread of this object, exactly once."""

    def __init__(
        self, plan: Plan, on_exit: Callable[[EngineDead], None], *, engine_id: int = 0, log_level: str = "INFO"
    ) -> None:
        self.address: EngineAddress = choose_address(engine_id)
        self._engine_id = engine_id
        self._on_exit = on_exit
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferplane.engine.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        launch = Launch(plan=plan, address=self.address, engine_id=engine_id, log_level=log_level)
        with contextlib.suppress(BrokenPipeError):  # it died already: the waiting thread tells why
            write_frame(cast("BinaryIO", self._process.stdin), msgspec.msgpack.encode(launch))
        self._thread = threading.Thread(target=self._wait, name=f"engine {engine_id}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the engine process."""
        return self._process.pid

    def stop(self, timeout: float = 5.0) -> None:
        """Close the pipe, which ends the process; kill it when it does not. Returns when it is gone."""
        with contextlib.suppress(OSError):
            cast("BinaryIO", self._process.stdin).close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._thread.join(timeout)
        remove_address(self.address)

    def wait(self, timeout: float) -> bool:
        """True when the process has ended within the time."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the engine and everything it started."""
        if self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self) -> None:
        with cast("BinaryIO", self._process.stdout) as status:
            frame = read_frame(status)
        code = self._process.wait()
        self._on_exit(self._cause(frame, code))

    def _cause(self, frame: bytes | None, code: int) -> EngineDead:
        name = f"engine {self._engine_id} (pid {self._process.pid})"
        if frame is not None:
            failed = msgspec.msgpack.decode(frame, type=Failed)
            return EngineDead(failed.message, code=failed.code, remedy=failed.remedy)
        if code < 0:
            hint = OUT_OF_MEMORY_HINT if code == -signal.SIGKILL else "see the lines above"
            return EngineDead(f"{name} was killed by {signal.Signals(-code).name}", code="engine.killed", remedy=hint)
        return EngineDead(
            f"{name} exited with status {code}", code="engine.exited", remedy="see the lines above for what it printed"
        )
