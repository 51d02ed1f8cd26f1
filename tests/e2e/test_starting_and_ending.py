"""From the first moment to the last: what is answered while loading, while draining, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "scripted", "prompt": "abc", "max_tokens": 400, "ignore_eos": True}


def stream(url: str, events: list[Any], **body: Any) -> threading.Thread:
    """Reads a stream on a thread; events are decoded, the end of the connection is an exception."""

    def read() -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "stream": True, **body}, timeout=60) as a:
                events.append(a.status_code)
                if a.status_code != 200:
                    events.append(json.loads(a.read()))
                    return
                for line in a.iter_lines():
                    if line.startswith("data: "):
                        events.append("[DONE]" if line == "data: [DONE]" else json.loads(line[6:]))
        except httpx.HTTPError as error:
            events.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_loading_server_answers_and_says_how_far_it_is(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"load_seconds": 1.5}) as server:
        url = server.wait_listening()
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503
        assert int(health.headers["retry-after"]) > 0
        assert health.json()["error"]["code"] == "engine_starting"
        refused = httpx.post(
            f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "a" * 200_000}]}
        )
        assert refused.status_code == 503
        phases = set()
        while (startup := httpx.get(f"{url}/startup").json())["state"] == "starting" and "phase" in startup:
            phases.add(startup["phase"])
            time.sleep(0.02)
        assert {"model", "loading"} <= phases
        assert server.wait_ready() == url
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/startup").json()["engine"]


def test_no_connection_is_refused_between_loading_and_ready(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"load_seconds": 0.5}) as server:
        url = server.wait_listening()
        statuses: list[int] = []
        with httpx.Client() as client:
            while 200 not in statuses:
                statuses.append(client.get(f"{url}/health", timeout=10).status_code)
        assert set(statuses) == {200, 503}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_everything(scripted_model: Path, served: Any, number: int) -> None:
    with served(scripted_model, {"load_seconds": 60}) as server:
        server.wait_listening()
        wait_for(lambda: psutil.Process(server.process.pid).children())
        wait_for(lambda: _has_engine(server))
        engine = server.engine
        time.sleep(0.5)
        server.process.send_signal(number)
        assert server.wait_end() == 128 + number
        assert not engine.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flags", [(), ("--api-server-count", "2")])
def test_a_signal_at_the_ready_line_drains(
    scripted_model: Path, served: Any, flags: tuple[str, ...], number: int
) -> None:
    """The start is over, whoever catches signals at that moment."""
    with served(scripted_model, {}, *flags) as server:
        server.wait_ready()
        server.process.send_signal(number)
        assert server.wait_end() == 0


@pytest.mark.parametrize("path", ["/health", "/ping", "/version"])
def test_a_probe_may_ask_for_the_head_alone(scripted_model: Path, served: Any, path: str) -> None:
    with served(scripted_model, {}, "--api-key", "secret") as server:
        url = server.wait_ready()
        answer = httpx.head(url + path)
        assert answer.status_code == (200 if path != "/version" else 401)
        assert answer.content == b""


def _has_engine(server: Any) -> bool:
    try:
        return bool(server.engine)
    except (AssertionError, psutil.Error):
        return False


def test_the_drain_has_an_end_and_cuts_with_a_proper_finish(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.05}, "--shutdown-timeout", "1") as server:
        url = server.wait_ready()
        engine = server.engine
        events: list[Any] = []
        reader = stream(url, events)
        whole: list[httpx.Response] = []
        waiter = threading.Thread(
            target=lambda: whole.append(httpx.post(f"{url}/v1/completions", json=BODY, timeout=60))
        )
        waiter.start()
        wait_for(lambda: len(events) > 3)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("shutting down")
        wait_for(lambda: not _connects(url))
        reader.join(20)
        waiter.join(20)
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "abort"
        assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "shutting_down")
        assert server.wait_end() == 0
        assert not engine.is_running()


def _connects(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.ConnectError:
        return False
    return True


def test_a_second_signal_ends_at_once(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.05}, "--shutdown-timeout", "600") as server:
        url = server.wait_ready()
        engine = server.engine
        events: list[Any] = []
        reader = stream(url, events)
        wait_for(lambda: len(events) > 2)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("shutting down")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end(10) == 128 + signal.SIGTERM
        reader.join(10)
        assert not engine.is_running()


STAGES = ["starting", "loading", "idle", "prefilling", "decoding", "draining"]


@pytest.mark.parametrize("victim", ["api", "engine"])
@pytest.mark.parametrize("stage", STAGES)
def test_sigkill_leaves_nothing_behind(scripted_model: Path, served: Any, stage: str, victim: str) -> None:
    script = {"delay": 0.1, "load_seconds": 60 if stage == "loading" else 0}
    with served(scripted_model, script, "--max-num-batched-tokens", "16") as server:
        url = server.wait_listening() if stage in ("starting", "loading") else server.wait_ready()
        wait_for(lambda: _has_engine(server))
        engine = server.engine
        if stage == "loading":
            wait_for(lambda: httpx.get(f"{url}/startup").json().get("phase") == "loading")
        events: list[Any] = []
        if stage in ("prefilling", "decoding", "draining"):
            reader = stream(url, events, prompt="x" * 1000 if stage == "prefilling" else "abc")
            wait_for(lambda: _running(url) if stage == "prefilling" else len(events) > 1)
        if stage == "draining":
            server.process.send_signal(signal.SIGTERM)
            server.wait_log("shutting down")
        folder = _socket_folder(engine)
        everyone = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        os.kill(server.process.pid if victim == "api" else engine.pid, signal.SIGKILL)
        if victim == "engine" and stage in ("starting", "loading"):
            assert server.wait_end() == 1
        elif victim == "engine":
            if events:
                reader.join(10)
                last = events[-1]
                assert last["error"]["code"] == "engine.killed"
            if stage != "draining":
                wait_for(lambda: httpx.get(f"{url}/health").status_code == 503)
                server.process.send_signal(signal.SIGTERM)
            assert server.wait_end() == 0
        _, alive = psutil.wait_procs(everyone, timeout=10)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        assert folder is None or not os.path.exists(folder)


def _running(url: str) -> bool:
    return httpx.get(f"{url}/load").json()["server_load"] == 1


def _socket_folder(engine: psutil.Process) -> str | None:
    paths = [str(c.laddr) for c in engine.net_connections("unix") if "/inferplane-" in str(c.laddr)]
    return os.path.dirname(paths[0]) if paths else None
