"""Start, death, hang and orphans of a served engine, through real processes on the scripted platform."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "scripted", "prompt": "abc", "max_tokens": 400, "ignore_eos": True}


def stream_until_error(url: str, seen: list[Any]) -> None:
    """Read a stream; append the time and the text of its error event, if one comes."""
    with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "stream": True}, timeout=60) as answer:
        seen.append(answer.status_code)
        for line in answer.iter_lines():
            if line.startswith("data: ") and '"error"' in line:
                seen.append((time.monotonic(), json.loads(line[6:])["error"]))


def test_a_killed_engine_fails_requests_in_time_and_names_the_cause(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.1}, "--disable-uvicorn-access-log") as server:
        url = server.wait_ready()
        seen: list[Any] = []
        client = threading.Thread(target=stream_until_error, args=(url, seen))
        client.start()
        while not seen:
            time.sleep(0.01)
        time.sleep(0.3)
        killed = time.monotonic()
        server.engine.kill()
        client.join(10)
        assert seen[0] == 200
        moment, error = seen[-1]
        assert moment - killed < 2.0
        error_id = re.search("error id ([0-9a-f]{8})", error["message"])
        assert error_id is not None
        assert "SIGKILL" not in error["message"], "the cause is for the log"
        started = time.monotonic()
        answer = httpx.post(f"{url}/v1/completions", json=BODY)
        assert (answer.status_code, time.monotonic() - started < 2.0) == (503, True)
        assert error_id[0] in answer.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 503
        deadline = time.monotonic() + 5
        while "SIGKILL" not in server.log[-1] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "SIGKILL" in server.log[-1]
        assert error_id[0] in server.log[-1]
        assert "remedy" in server.log[-1]


def test_a_killed_front_end_leaves_no_engine_and_no_sockets(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.05}) as server:
        url = server.wait_ready()
        engine = server.engine
        sockets = [path for c in engine.net_connections("unix") if "inferplane-" in (path := str(c.laddr))]
        assert sockets
        threading.Thread(target=_post_quietly, args=(url,), daemon=True).start()
        time.sleep(0.3)
        os.kill(server.process.pid, signal.SIGKILL)
        engine.wait(5)
        assert not engine.is_running()
        assert not [path for path in sockets if os.path.exists(os.path.dirname(path))]


def _post_quietly(url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/completions", json=BODY, timeout=30)


def test_a_front_end_killed_while_the_engine_loads_leaves_no_engine(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"load_seconds": 30}) as server:
        deadline = time.monotonic() + 20
        engine = None
        while engine is None and time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                engine = server.engine
            time.sleep(0.05)
        assert engine is not None
        server.process.kill()
        engine.wait(5)
        assert not engine.is_running()


def test_a_failing_load_ends_serve_with_the_cause_last(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"load_error": "the moon is in the wrong phase"}) as server:
        assert server.wait_end() == 1
        assert "the moon is in the wrong phase" in server.log[-1]


def test_an_engine_killed_while_loading_ends_serve_with_the_cause_last(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"load_seconds": 30}) as server:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                server.engine.kill()
                break
            time.sleep(0.05)
        assert server.wait_end() == 1
        assert "SIGKILL" in server.log[-1]


def test_a_hung_engine_turns_health_red_and_fails_requests(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"faults": [{"kind": "hang", "step": 3}]}, "--hang-timeout", "2") as server:
        url = server.wait_ready()
        assert httpx.get(f"{url}/health").status_code == 200
        started = time.monotonic()
        answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=30)
        assert time.monotonic() - started < 2 + 2 + 1
        assert answer.status_code == 503
        assert "does not answer" in answer.json()["error"]["message"]
        assert [line for line in server.log if "has not completed a step" in line]
        assert httpx.get(f"{url}/health").status_code == 503


def test_a_stopped_engine_process_turns_health_red(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, None, "--hang-timeout", "2") as server:
        url = server.wait_ready()
        engine = server.engine
        engine.suspend()
        try:
            deadline = time.monotonic() + 8
            while httpx.get(f"{url}/health").status_code == 200 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert httpx.get(f"{url}/health").status_code == 503
        finally:
            engine.resume()


def test_sigterm_lets_running_requests_finish(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.02}) as server:
        url = server.wait_ready()
        answers: list[httpx.Response] = []
        body = {**BODY, "max_tokens": 60}
        client = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=body)))
        client.start()
        time.sleep(0.4)
        server.process.send_signal(signal.SIGTERM)
        client.join(20)
        assert answers[0].status_code == 200
        assert answers[0].json()["usage"]["completion_tokens"] == 60
        assert server.wait_end() == 0


def test_one_failing_step_leaves_the_server_running(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"faults": [{"kind": "raise", "step": 3}]}) as server:
        url = server.wait_ready()
        assert httpx.post(f"{url}/v1/completions", json=BODY, timeout=30).status_code == 500
        answer = httpx.post(f"{url}/v1/completions", json={**BODY, "max_tokens": 5}, timeout=30)
        assert answer.status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200


def test_an_exiting_engine_is_reported_with_its_status(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"faults": [{"kind": "exit", "step": 2}]}) as server:
        url = server.wait_ready()
        answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=30)
        assert answer.status_code == 503
        assert "has stopped" in answer.json()["error"]["message"]
        assert server.wait_log("exited with status")


def test_a_taken_port_is_refused_before_anything_is_loaded(scripted_model: Path, served: Any) -> None:
    with served(scripted_model) as first:
        port = first.wait_ready().rsplit(":", 1)[1]
        second = subprocess.run(
            [sys.executable, "-m", "inferplane", "serve", str(scripted_model), "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 1
        assert f"port={port}" in second.stderr.splitlines()[-1]
