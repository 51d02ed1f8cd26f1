"""`inferplane serve` as a process of its own, on the scripted platform."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Served:
    """One `inferplane serve` and everything it printed."""

    def __init__(self, model: Path, script: dict[str, Any] | None, *flags: str) -> None:
        command = [sys.executable, "-m", "inferplane", "serve", str(model), "--platform", "scripted", "--port", "0"]
        command += ["--served-model-name", "scripted", *flags]
        if script is not None:
            path = model.parent / f"script-{time.monotonic_ns()}.json"
            path.write_text(json.dumps(script))
            command += ["--platform-option", f"script={path}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def wait_ready(self) -> str:
        """The base URL, from the ready line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ready: "):
                return line.split(" on ")[1].split("/v1")[0]
        raise AssertionError("\n".join(self.log))

    def wait_listening(self) -> str:
        """The base URL as soon as the socket is bound, from what the system knows of the process."""
        process = psutil.Process(self.process.pid)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    return f"http://127.0.0.1:{connection.laddr.port}"
            time.sleep(0.01)
        raise AssertionError("\n".join(self.log))

    def wait_log(self, text: str, timeout: float = 20) -> str:
        """The first line that holds the text."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for line in self.log:
                if text in line:
                    return line
            time.sleep(0.02)
        raise AssertionError("\n".join(self.log))

    def wait_end(self, timeout: float = 20) -> int:
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def close(self) -> None:
        """Kill what still runs, and close the pipes."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def engine(self) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # others come and go meanwhile
                if "inferplane.engine.process" in child.cmdline():
                    return child
        raise AssertionError("no engine process")


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from inferplane_scripted.checkpoint import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("scripted") / "model")


@contextlib.contextmanager
def _served(model: Path, script: dict[str, Any] | None = None, *flags: str) -> Iterator[Served]:
    server = Served(model, script, *flags)
    try:
        yield server
    finally:
        children = psutil.Process(server.process.pid).children(recursive=True) if server.process.poll() is None else []
        server.close()
        psutil.wait_procs(children, timeout=10)
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="session")
def served() -> Callable[..., contextlib.AbstractContextManager[Served]]:
    """`with served(model, script, *flags) as server`: a server and what it printed; nothing of it is left behind."""
    return _served
