"""`bench startup`: from the start of the process to the ready line and to the first token. Reads no log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from inferplane.errors import InferplaneError

_READY = re.compile(r"^Ready: (?P<name>.*) on (?P<url>http\S+)/v1 ")


class Start(NamedTuple):
    """One start of a server; seconds since its process was started."""

    ready: float
    first_token: float
    phases: list[tuple[str, float]]
    """(phase, seconds) as the server tells them."""


def serve_command(settings: Path) -> list[str]:
    """The command of a server that reads its settings from a file."""
    return [sys.executable, "-m", "inferplane", "serve", "--config", str(settings)]


def measure_starts(
    said: Mapping[str, Any], count: int, limit: float, *, step: Callable[[], None] = lambda: None
) -> list[Start]:
    """Start, ask for one token and stop, `count` times. said: settings by field name, the port left to us.

    Raises InferplaneError when a server does not become ready within `limit` seconds.
    """
    starts = []
    with tempfile.TemporaryDirectory(prefix="inferplane-startup-") as folder:
        # A file and no arguments: keys must not stand where every user of the host can read them.
        settings = Path(folder) / "settings.yaml"
        settings.touch(0o600)
        settings.write_text(json.dumps({**said, "host": "127.0.0.1", "port": 0}), encoding="utf-8")
        for _ in range(count):
            starts.append(one_start(serve_command(settings), _key_of(said), limit))
            step()
    return starts


def one_start(command: Sequence[str], api_key: str | None, limit: float) -> Start:
    """Raises InferplaneError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    started = time.perf_counter()
    with _running(command) as process:
        name, url = _wait_for_ready(process, started + limit)
        ready = time.perf_counter() - started
        with httpx.Client(headers=headers, timeout=limit) as client:
            _first_token(client, url, name)
            first = time.perf_counter() - started
            info = client.get(f"{url}/server_info").raise_for_status().json()
    phases = [(phase["phase"], phase["seconds"]) for phase in info["timeline"]]
    phases += [(f"engine {phase['phase']}", phase["seconds"]) for phase in info["engine_timeline"]]
    return Start(ready, first, phases)


def summarize_starts(starts: Sequence[Start]) -> dict[str, Any]:
    """Figures of several starts: the first may have filled caches that the others found."""
    result: dict[str, Any] = {"num_starts": len(starts)}
    for name, values in (
        ("time_to_ready", [start.ready for start in starts]),
        ("time_to_first_token", [start.first_token for start in starts]),
    ):
        result |= {
            f"first_{name}": values[0],
            f"min_{name}": min(values),
            f"mean_{name}": statistics.fmean(values),
            f"median_{name}": statistics.median(values),
            f"{name}s": values,
        }
    names = [name for name, _ in starts[0].phases]
    result["median_phases"] = {
        name: statistics.median([seconds for start in starts for phase, seconds in start.phases if phase == name])
        for name in names
    }
    return result


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _wait_for_ready(process: subprocess.Popen[str], deadline: float) -> tuple[str, str]:
    import threading

    assert process.stdout is not None
    # Reading a line blocks for as long as the server is silent; its end ends the reading.
    watch = threading.Timer(max(0.0, deadline - time.perf_counter()), process.kill)
    watch.start()
    try:
        for line in process.stdout:
            if found := _READY.match(line):
                return found["name"], found["url"]
    finally:
        watch.cancel()
    status = process.wait()
    raise InferplaneError(
        f"the server ended with status {status} before it was ready",
        code="bench.not_ready",
        remedy="its last line above says why; a slow start needs a higher --start-limit",
    )


def _first_token(client: httpx.Client, url: str, name: str) -> None:
    body = {"model": name, "prompt": "Hello", "max_tokens": 1, "stream": True, "ignore_eos": True}
    try:
        with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            if answer.is_error:
                answer.read()
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: ") and '"choices"' in line:
                    return
    except httpx.HTTPError as error:
        raise InferplaneError(f"the first request failed: {error}", code="bench.not_ready") from error
    raise InferplaneError("the first request was answered without a token", code="bench.not_ready")


def _key_of(said: Mapping[str, Any]) -> str | None:
    keys = said.get("api_key") or ()
    return str(keys[0]) if keys else os.environ.get("INFERPLANE_API_KEY")
