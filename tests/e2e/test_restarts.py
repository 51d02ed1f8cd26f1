"""`--engine-restarts`: what waits is kept, what has begun fails and is never repeated, and there is an end."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "scripted", "prompt": "abc", "max_tokens": 40, "ignore_eos": True}


def wait_for(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def post(url: str, answers: list[httpx.Response], **body: Any) -> threading.Thread:
    def work() -> None:
        answers.append(httpx.post(f"{url}/v1/completions", json={**BODY, **body}, timeout=60))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_waiting_requests_outlive_their_engine(scripted_model: Path, served: Any) -> None:
    flags = ("--engine-restarts", "2", "--max-num-seqs", "1")
    with served(scripted_model, {"delay": 0.05}, *flags) as server:
        url = server.wait_ready()
        alone = httpx.post(f"{url}/v1/completions", json={**BODY, "prompt": "xyz"}, timeout=60).json()
        events: list[Any] = []

        def read() -> None:
            with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "stream": True}, timeout=60) as answer:
                events.extend(json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))

        running = threading.Thread(target=read)
        running.start()
        wait_for(lambda: httpx.get(f"{url}/load").json()["server_load"] == 1)
        time.sleep(0.3)
        answers: list[httpx.Response] = []
        waiting = [post(url, answers, prompt="xyz"), post(url, answers, prompt="xyz")]
        wait_for(lambda: httpx.get(f"{url}/load").json()["server_load"] == 3)
        time.sleep(0.2)
        first = server.engine
        first.kill()
        running.join(10)
        assert events[-1]["error"]["code"] == "engine.killed"
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 503, 5)
        refused = httpx.post(f"{url}/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_starting")
        assert int(refused.headers["retry-after"]) > 0
        for thread in waiting:
            thread.join(40)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {answer.json()["choices"][0]["text"] for answer in answers} == {alone["choices"][0]["text"]}
        assert httpx.get(f"{url}/health").status_code == 200
        assert server.engine.pid != first.pid
        metrics = httpx.get(f"{url}/metrics").text
        restarts = next(line for line in metrics.splitlines() if line.startswith("inferplane:engine_restarts_total"))
        assert restarts.endswith(" 1.0")


def test_a_request_that_kills_every_engine_is_tried_twice_and_the_cause_is_named(
    scripted_model: Path, served: Any
) -> None:
    script = {"faults": [{"kind": "exit", "step": 1}]}
    with served(scripted_model, script, "--engine-restarts", "1", "--disable-uvicorn-access-log") as server:
        url = server.wait_ready()
        answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
        assert answer.status_code == 503
        assert "error id" in answer.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 503
        assert "after 1 restarts" in server.wait_log("the engine died after")
        assert "exited with status 70" in server.log[-1]


def test_a_hung_engine_is_started_again(scripted_model: Path, served: Any) -> None:
    flags = ("--engine-restarts", "1", "--hang-timeout", "2")
    with served(scripted_model, {"faults": [{"kind": "hang", "step": 30}]}, *flags) as server:
        url = server.wait_ready()
        first = server.engine
        answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine.hung")
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 200)
        assert not first.is_running()
        assert httpx.post(f"{url}/v1/completions", json={**BODY, "max_tokens": 5}, timeout=60).status_code == 200
