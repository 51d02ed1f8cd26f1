"""One discovery child as the launcher sees it: start, ask, and tell a crash, a hang and noise apart."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import tempfile
import time
from typing import NamedTuple, Protocol

import msgspec

from inferplane.plugins.child import Answerer
from inferplane.plugins.child_process import describe_exit, end_child, last_line, start_child
from inferplane.plugins.wire import HEADER, MAX_FRAME, Done, Reply, Request, frame
from inferplane_api.spec import Reason

_EXIT_SECONDS = 1.0
"""Between the end of a child's answers and its own."""


class ProcessNotStarted(Exception):
    """The host cannot start another process; nobody's plugin is at fault."""


class Replies(NamedTuple):
    """What came back for one request; with a failure, what came before it."""

    messages: list[Reply]
    failure: Reason | None = None
    patched: tuple[str, ...] = ()
    """Names of the core that the plugin rebound in its own process."""


class Worker(Protocol):
    """Where one distribution's descriptors live."""

    def ask(self, request: Request, deadline: float) -> Replies:
        """Send a request and wait for its Done; `deadline` is a time of time.monotonic."""

    def close(self) -> None:
        """End it."""


class LocalWorker:
    """Core's own descriptors, in this process: importing them runs no plugin code and saves a child."""

    def __init__(self) -> None:
        self._answerer = Answerer()

    def ask(self, request: Request, deadline: float) -> Replies:
        """As `Worker.ask`; nothing here can hang."""
        messages: list[Reply] = []
        self._answerer.answer(request, messages.append)
        return Replies(messages[:-1])

    def close(self) -> None:
        """Nothing to end."""


class ChildWorker:
    """A child process for one distribution, on the launcher's own import path."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        try:
            self._process = start_child("inferplane.plugins.child", self._stderr)
        except OSError as error:
            self._stderr.close()
            raise ProcessNotStarted(str(error)) from error
        self._closed = False
        self._failure: Reason | None = None
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(Reply)

    def ask(self, request: Request, deadline: float) -> Replies:
        """As `Worker.ask`. After a failure the child is gone, and every later answer is that failure."""
        if self._failure is not None:
            return Replies([], self._failure)
        messages: list[Reply] = []
        patched: tuple[str, ...] = ()
        try:
            stdin = self._process.stdin
            assert stdin is not None
            stdin.write(frame(request))
            stdin.flush()
            while not isinstance(reply := self._receive(deadline), Done):
                messages.append(reply)
            patched = reply.patched
        except _Failed as failure:
            self._failure = failure.reason
        except OSError:
            self._failure = self._died()
        except msgspec.MsgspecError as error:
            self._failure = Reason(code="plugin.noise", hint=f"its answer cannot be read: {error}")
        if self._failure is not None:
            self.close()
        return Replies(messages, self._failure, patched)

    def close(self) -> None:
        """Kill the child with everything it started, which may outlive a child that crashed."""
        if not self._closed:
            self._closed = True
            end_child(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _receive(self, deadline: float) -> Reply:
        size = HEADER.unpack(self._read(HEADER.size, deadline))[0]
        if size > MAX_FRAME:
            raise _Failed(Reason(code="plugin.noise", hint="its answer is not a frame"))
        return self._decoder.decode(self._read(size, deadline))

    def _read(self, count: int, deadline: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while len(self._buffer) < count:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise _Failed(Reason(code="plugin.timeout", hint="it gave no answer in time and was killed"))
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    raise _Failed(self._died())
                self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _died(self) -> Reason:
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return Reason(code="plugin.noise", hint="it closed the channel of its answers, went on and was killed")
        return Reason(code="plugin.crashed", hint=f"its process ended: {describe_exit(code, last_line(self._stderr))}")


class _Failed(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason
