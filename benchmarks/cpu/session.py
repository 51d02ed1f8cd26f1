"""The other end of `child.py`: starts an engine's process, asks, measures its memory, ends it. Knows no work."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from work import Request

CHILD = Path(__file__).parent / "child.py"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_CPU_AFFINITY",
)
"""Taken from the environment of every engine: each shall choose as it does for its users."""


class SessionFailed(Exception):
    """The engine said an error, died or took too long; the text says which, and where its log is."""


def engine_environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    return {**kept, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **extra}


class Session:
    """A context manager: the process lives inside the block."""

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None, limit: float = 600.0
    ) -> None:
        self.started = time.perf_counter()
        self.log = log
        self._limit = limit
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=engine_environment(environment or {}),
                start_new_session=True,
            )
        self._pending = b""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        end_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # A dead engine leaves unwritten bytes that nobody will read.
                with contextlib.suppress(OSError):
                    pipe.close()

    def load(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask({"verb": "load", "settings": dict(settings)})

    def generate(self, requests: Sequence[Request], shared: int = 0) -> tuple[float, list[list[int]]]:
        """(seconds, the tokens of every request)."""
        reply = self._ask({"verb": "generate", "requests": list(requests), "shared": shared})
        return float(reply["seconds"]), reply["outputs"]

    def score(self, text: str) -> list[float]:
        values: list[float] = self._ask({"verb": "score", "text": text})["nll"]
        return values

    def peak_memory(self) -> float:
        """MB of all its processes so far, each at its own peak: for several processes an upper bound."""
        return sum(peak_rss(process) for process in process_tree(self._process.pid)) / 2**20

    def close(self) -> None:
        self._ask({"verb": "close"})

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line()
        except (BrokenPipeError, EOFError) as error:
            raise SessionFailed(f"its process ended with status {self._process.wait()}, log: {self.log}") from error
        reply = json.loads(line)
        if "error" in reply:
            raise SessionFailed(f"{order['verb']}: {reply['error']}, log: {self.log}")
        answer: dict[str, Any] = reply["ok"]
        return answer

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.perf_counter() + self._limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.perf_counter())):
                    raise SessionFailed(f"no answer within {self._limit:g} s, log: {self.log}")
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise EOFError
                self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line


def end_group(process: subprocess.Popen[bytes], patience: float = 20.0) -> None:
    """End a process that leads a session of its own, and all of its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def process_tree(root: int) -> list[int]:
    """The process and its descendants, from /proc."""
    found = [root]
    for process in found:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def peak_rss(process: int) -> int:
    """Bytes; 0 for a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
