"""What a kill costs: SIGKILL to the API process or the engine at every stage of a server's life. Prints JSON.

Each row is one server on the scripted platform (`inferplane-scripted`): the stage, who was killed, the seconds until
the client of a running stream got its error (or lost its connection), until /health was red, until every process was
gone, and what was left of processes and socket folders. After the death of an engine the server lives on, red; the row
then times its end by SIGTERM.

    python benchmarks/faults.py --runs 3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

STAGES = ("starting", "loading", "idle", "prefilling", "decoding", "draining")
BODY = {"model": "scripted", "max_tokens": 400, "ignore_eos": True, "stream": True}
LIMIT = 30.0


def wait_for(condition: Any) -> Any:
    """What the condition gives once it is true."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError, psutil.Error, StopIteration):
            if value := condition():
                return value
        time.sleep(0.002)
    raise TimeoutError


class Server:
    """One `inferplane serve`."""

    def __init__(self, folder: Path, script: dict[str, Any]) -> None:
        path = folder / "script.json"
        path.write_text(json.dumps(script))
        command = [sys.executable, "-m", "inferplane", "serve", str(folder / "model"), "--platform", "scripted"]
        command += ["--port", "0", "--served-model-name", "scripted", "--platform-option", f"script={path}"]
        self.process = subprocess.Popen(
            [*command, "--max-num-batched-tokens", "16"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.handle = psutil.Process(self.process.pid)
        port = wait_for(lambda: next(c.laddr.port for c in self.handle.net_connections("tcp") if c.status == "LISTEN"))
        self.url = f"http://127.0.0.1:{port}"

    def engine(self) -> psutil.Process:
        """The engine process."""
        return next(c for c in self.handle.children() if "inferplane.engine.process" in c.cmdline())

    def get(self, path: str) -> httpx.Response:
        """One request."""
        return httpx.get(self.url + path, timeout=5)


def lives(process: psutil.Process) -> bool:
    """False also for what has ended and was not reaped."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def read_stream(url: str, prompt: str, seen: list[float]) -> None:
    """Append the time of each event, and at last that of the error or of the connection's end."""
    with contextlib.suppress(httpx.HTTPError):
        body = {**BODY, "prompt": prompt}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=LIMIT) as answer:
            for line in answer.iter_lines():
                if line:
                    seen.append(time.monotonic())
    seen.append(time.monotonic())


def reach(server: Server, stage: str) -> tuple[threading.Thread | None, list[float]]:
    """Bring the server to the stage; the reader of its stream, where one runs, and the times of what it read."""
    if stage == "loading":
        wait_for(lambda: server.get("/startup").json().get("phase") == "loading")
    if stage in ("starting", "loading"):
        wait_for(server.engine)
        return None, []
    wait_for(lambda: server.get("/health").status_code == 200)
    if stage == "idle":
        return None, []
    seen: list[float] = []
    prompt = "x" * 1500 if stage == "prefilling" else "abc"
    reader = threading.Thread(target=read_stream, args=(server.url, prompt, seen), daemon=True)
    reader.start()
    wait_for(lambda: server.get("/load").json()["server_load"] == 1 if stage == "prefilling" else len(seen) > 2)
    if stage == "draining":
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    return reader, seen


def measure(folder: Path, stage: str, victim: str) -> dict[str, Any]:
    """One row."""
    server = Server(folder, {"delay": 0.1, "load_seconds": 60 if stage == "loading" else 0})
    try:
        reader, seen = reach(server, stage)
        engine = wait_for(server.engine)
        folders = {
            os.path.dirname(str(c.laddr)) for c in engine.net_connections("unix") if "/inferplane-" in str(c.laddr)
        }
        everyone = [server.handle, *server.handle.children(recursive=True)]
        row: dict[str, Any] = {"stage": stage, "killed": victim}
        began = time.monotonic()
        os.kill(server.process.pid if victim == "api" else engine.pid, signal.SIGKILL)
        if victim == "engine" and stage in ("idle", "prefilling", "decoding"):
            wait_for(lambda: server.get("/health").status_code == 503)
            row["health_red"] = time.monotonic() - began
        if reader is not None:
            reader.join(LIMIT)
            row["client_error"] = seen[-1] - began
        if victim == "engine" and stage in ("idle", "prefilling", "decoding"):
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.process.poll() is not None)
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: not any(map(lives, everyone)))
        row["all_gone"] = time.monotonic() - began
        row["left_processes"] = sum(map(lives, everyone))
        row["left_folders"] = sum(map(os.path.exists, folders))
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
    finally:
        server.process.kill()
        server.process.wait()


def main() -> None:
    """Every stage and victim, `--runs` times."""
    from inferplane_scripted.checkpoint import write_checkpoint

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "model")
        for _ in range(runs):
            for stage in STAGES:
                for victim in ("api", "engine"):
                    print(json.dumps(measure(folder, stage, victim)), flush=True)


if __name__ == "__main__":
    main()
