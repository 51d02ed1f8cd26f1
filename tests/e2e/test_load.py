"""Full queues, deadlines and faults of single requests, through real processes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "scripted", "prompt": "abc", "max_tokens": 40, "ignore_eos": True}


def post(url: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={**BODY, **body}, headers=headers, timeout=60)


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[-1])


def wait_for(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_full_queues_and_long_waits_are_refused_and_the_rest_is_served(scripted_model: Path, served: Any) -> None:
    flags = ("--max-num-seqs", "1", "--max-num-queued-reqs", "4", "--max-num-queued-tokens", "300")
    with served(scripted_model, {"delay": 0.05}, *flags) as server, ThreadPoolExecutor(8) as pool:
        url = server.wait_ready()
        running = pool.submit(post, url, max_tokens=120)
        wait_for(lambda: httpx.get(f"{url}/load").json()["server_load"] == 1)
        time.sleep(0.3)
        late = pool.submit(post, url, headers={"X-Queue-Timeout": "0.4"})
        waiting = [pool.submit(post, url, prompt="x" * 140, max_tokens=2) for _ in range(2)]
        wait_for(lambda: httpx.get(f"{url}/load").json()["server_load"] == 4)
        tokens = post(url, prompt="y" * 100)
        assert (tokens.status_code, tokens.json()["error"]["type"]) == (429, "rate_limit_error")
        assert "prompt tokens" in tokens.json()["error"]["message"]
        assert int(tokens.headers["retry-after"]) >= 1
        assert (late.result().status_code, late.result().json()["error"]["code"]) == (503, "queue_timeout")
        waiting += [pool.submit(post, url, prompt="z", max_tokens=2) for _ in range(2)]
        wait_for(lambda: httpx.get(f"{url}/load").json()["server_load"] == 5)
        requests = post(url, prompt="z", stream=True)
        assert requests.status_code == 429
        assert "requests are running or waiting" in requests.json()["error"]["message"]
        assert running.result().status_code == 200
        assert [each.result().status_code for each in waiting] == [200] * 4
        for reason in ("queue_requests", "queue_tokens", "queue_timeout"):
            text = httpx.get(f"{url}/metrics").text
            assert next(line for line in text.splitlines() if f'reason="{reason}"' in line).endswith(" 1.0")


def test_a_deadline_ends_a_running_stream_with_an_error_event(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.05}, "--request-timeout", "1") as server:
        url = server.wait_ready()
        answer = post(url, stream=True, max_tokens=400)
        assert answer.status_code == 200
        assert '"code":"request_timeout"' in answer.text.rstrip().rsplit("\n", 1)[-1]
        assert post(url, max_tokens=400).status_code == 504
        wait_for(lambda: metric(url, "inferplane:kv_cache_usage_perc") == 0.0)


@pytest.mark.parametrize(("kind", "status", "code"), [("nan", 500, "corrupted"), ("raise", 500, "step_failed")])
def test_a_fault_of_one_request_leaves_the_others(
    scripted_model: Path, served: Any, kind: str, status: int, code: str
) -> None:
    prompt = ",".join(str(byte) for byte in b"bad")
    script = {"delay": 0.02, "faults": [{"kind": kind, "prompt": prompt, "position": 5}]}
    with served(scripted_model, script) as server:
        url = server.wait_ready()
        good: list[httpx.Response] = []
        other = threading.Thread(target=lambda: good.append(post(url)))
        if kind == "nan":
            other.start()
        bad = post(url, prompt="bad")
        assert (bad.status_code, bad.json()["error"]["code"]) == (status, code)
        assert "scripted" not in bad.json()["error"]["message"], "the cause is for the log"
        if kind == "nan":
            other.join(20)
            assert good[0].status_code == 200
            assert metric(url, "inferplane:corrupted_requests_total") == 1
        else:
            server.wait_log("scripted fault")
        assert post(url).status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200
        wait_for(lambda: metric(url, "inferplane:kv_cache_usage_perc") == 0.0)


def test_memory_that_runs_out_once_fails_nobody(scripted_model: Path, served: Any) -> None:
    script = {"delay": 0.02, "faults": [{"kind": "out_of_memory", "step": step} for step in (1, 5)]}
    with served(scripted_model, script) as server, ThreadPoolExecutor(4) as pool:
        url = server.wait_ready()
        answers = list(pool.map(lambda text: post(url, prompt=text), ["abcd" * 20, "efgh" * 20, "ijkl" * 20]))
        assert [answer.status_code for answer in answers] == [200] * 3
        server.wait_log("ran out of memory with")
        again = post(url, prompt="abcd" * 20)
        assert again.json()["choices"][0]["text"] == answers[0].json()["choices"][0]["text"]


def test_a_full_pool_preempts_and_answers_everybody(scripted_model: Path, served: Any) -> None:
    flags = ("--platform-option", "pages=24", "--max-model-len", "300")
    with served(scripted_model, {"delay": 0.0}, *flags) as server, ThreadPoolExecutor(16) as pool:
        url = server.wait_ready()
        texts = [chr(97 + i) * 60 for i in range(16)]
        answers = list(pool.map(lambda text: post(url, prompt=text, max_tokens=100), texts))
        assert [answer.status_code for answer in answers] == [200] * 16
        assert metric(url, "inferplane:num_preemptions_total") > 0
        wait_for(lambda: metric(url, "inferplane:kv_cache_usage_perc") == 0.0)


def test_a_hostile_template_and_a_long_text_keep_nobody(scripted_model: Path, served: Any) -> None:
    """While both are at work, another request goes through."""
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with served(scripted_model, None, "--trust-request-chat-template", "--max-model-len", "2000") as server:
        url = server.wait_ready()
        body = {"model": "scripted", "messages": [{"role": "user", "content": "a"}], "chat_template": endless}
        hostile: list[httpx.Response] = []
        threads = [
            threading.Thread(
                target=lambda: hostile.append(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60))
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: httpx.get(f"{url}/health", timeout=10).status_code == 200)
        assert post(url, prompt="x" * 120_000).status_code == 400
        for _ in range(3):
            assert post(url, max_tokens=3).status_code == 200
        assert hostile == [], "they are still at work"
        for thread in threads:
            thread.join(60)
        assert {answer.status_code for answer in hostile} <= {400, 503}
        assert post(url, max_tokens=3).status_code == 200
