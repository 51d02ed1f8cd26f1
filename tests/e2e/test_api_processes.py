"""Several API processes in front of one engine: load, counts, limits, deaths and ends, over real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferplane.channel.address import choose_address, make_folder, remove_address
from inferplane.channel.engine_end import EngineEnd
from inferplane.client.following_client import EngineNews
from inferplane.config import Config
from inferplane.launch import make_plan
from inferplane.launch_types import FrontEnd
from inferplane.messages import Ready, Stats
from inferplane.server.workers import Workers
from inferplane_api.kv import KVGeometry
from inferplane_api.runner import Capacity

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "scripted", "prompt": "abc", "max_tokens": 8, "ignore_eos": True}
TWO = ("--api-server-count", "2")


def wait_for(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def complete(url: str, **body: Any) -> httpx.Response:
    """On a connection of its own."""
    return httpx.post(f"{url}/v1/completions", json={**BODY, **body}, timeout=30)


def metric(url: str, name: str, **labels: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def load(url: str) -> set[int]:
    """What several connections are told."""
    return {httpx.get(f"{url}/load").json()["server_load"] for _ in range(5)}


def health(url: str) -> set[int]:
    return {httpx.get(f"{url}/health").status_code for _ in range(5)}


def ask_and_wait(url: str, **body: Any) -> socket.socket:
    """A request on a connection that stays open and is not read."""
    host, port = url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    data = json.dumps({**BODY, **body}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    client.sendall(head.format(f"{host}:{port}", len(data)).encode() + data)
    return client


def api_processes(server: Any) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(server.process.pid).children():
        try:
            if "inferplane.api_process" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.Error:
            pass
    return found


def who_answered(server: Any) -> set[str]:
    """The processes that have a line about a completion."""
    return {m[1] for line in server.log if (m := re.match(r"\[(api \d)\].*POST /v1/completions\" 200", line))}


def spread(server: Any, url: str) -> int:
    """Send until both processes have answered; how many it took."""
    sent = 0
    del server.log[:]
    with ThreadPoolExecutor(8) as pool:
        while who_answered(server) != {"api 0", "api 1"}:
            assert sent < 400
            assert all(answer.status_code == 200 for answer in pool.map(lambda _: complete(url), range(8)))
            sent += 8
    return sent


def test_both_answer_count_together_and_one_may_die(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, {"delay": 0.02}, *TWO, "--log-stats-interval", "0.2") as server:
        url = server.wait_ready()
        assert len(api_processes(server)) == 2
        starts = [httpx.get(f"{url}/startup").json() for _ in range(6)]
        phases = {tuple(phase["phase"] for phase in start["front_end"]) for start in starts}
        assert phases == {("source", "probe", "card", "plan", "tokenizer")}, "the parent's phases too"
        sent = spread(server, url)
        success = ("inferplane:request_success_total", "length")
        counts = {metric(url, success[0], finished_reason=success[1]) for _ in range(10)}
        assert counts == {sent}, "every process tells the sum"
        assert metric(url, "inferplane:generation_tokens_total") == 8 * sent
        handler = {"handler": "/v1/completions", "method": "POST", "status": "2xx"}
        assert metric(url, "http_requests_total", **handler) == sent
        lines = [line for line in server.log if "generation" in line and "tokens/s" in line]
        assert lines
        assert not [line for line in lines if line.startswith("[")], "the log line comes from one process, once"

        # A stream that hangs on one of them is load of both, and ends with it.
        with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "max_tokens": 400, "stream": True}) as stream:
            chunks = stream.iter_bytes()
            next(chunks)
            assert load(url) == {1}
            before = {process.pid for process in api_processes(server)}
            (owner,) = [p for p in api_processes(server) if p.net_connections("tcp") and _serves(p, stream)]
            owner.kill()
            ended = False
            try:
                for _ in chunks:
                    pass
            except httpx.HTTPError:
                ended = True
            assert ended
        assert complete(url).status_code == 200, "the other one goes on"
        wait_for(lambda: len(api_processes(server)) == 2)
        assert owner.pid not in {process.pid for process in api_processes(server)}
        assert len(before & {process.pid for process in api_processes(server)}) == 1
        wait_for(lambda: metric(url, "inferplane:num_requests_running") == 0)
        assert load(url) == {0}
        assert server.wait_log("SIGKILL")
        assert metric(url, success[0], finished_reason=success[1]) == sent + 1, "what it had counted stays"
        sent += 1 + spread(server, url)
        assert metric(url, success[0], finished_reason=success[1]) == sent

        server.engine.kill()
        wait_for(lambda: health(url) == {503})
        messages = {httpx.get(f"{url}/health").json()["error"]["message"] for _ in range(8)}
        (error_id,) = {re.search("error id ([0-9a-f]{8})", message)[1] for message in messages}
        assert [line for line in server.log if error_id in line and "SIGKILL" in line]

        everybody = psutil.Process(server.process.pid).children(recursive=True)
        assert len(everybody) == 2
        os.kill(server.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(everybody, timeout=5)
        assert not alive


def _serves(process: psutil.Process, stream: httpx.Response) -> bool:
    port = stream.extensions["network_stream"].get_extra_info("client_addr")[1]
    return any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp"))


async def test_none_answers_before_the_engine_has_greeted_it(scripted_model: Path) -> None:
    """The owner may have heard of the engine long before: its news come by another way."""
    address = choose_address()
    make_folder(address)
    engine = EngineEnd(address)
    config = Config.model_validate({"model": {"model": str(scripted_model)}, "platform": {"platform": "scripted"}})
    planned = make_plan(config)
    said = config.model_dump_json(exclude_unset=True).encode()
    news = EngineNews(state="ready", address=address, stats=Stats(), stats_before=Stats())
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/health"
    front_end = FrontEnd(1, planned.plan, said, "", [])
    workers = Workers(front_end, listener, news=lambda: news, on_gone=lambda _: None)
    workers.start()
    try:
        await asyncio.wait_for(workers.ready(), 30)
        workers.serve()
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(url, timeout=1)
            (hello,) = engine.receive(0)
            geometry = KVGeometry(page_bytes=64, groups=(), block_size=16)
            capacity = Capacity(max_model_len=64, num_pages=9, max_num_seqs=4, kv_tokens=128, geometry=geometry)
            engine.send(Ready(client_id=hello.client_id, engine_id=0, capacity=capacity))
            assert (await client.get(url, timeout=10)).status_code == 200
    finally:
        await workers.close()
        listener.close()
        engine.close()
        remove_address(address)


def test_limits_restarts_and_the_end_hold_for_all_of_them_together(scripted_model: Path, served: Any) -> None:
    flags = (*TWO, "--max-num-seqs", "2", "--max-num-queued-reqs", "3", "--engine-restarts", "1")
    with served(scripted_model, {"delay": 0.02}, *flags) as server:
        url = server.wait_ready()
        with contextlib.ExitStack() as clients:
            for number in range(1, 6):
                clients.enter_context(ask_and_wait(url, max_tokens=2000))  # 40 s: none ends while the others come
                wait_for(lambda number=number: load(url) == {number})
            refused = [complete(url) for _ in range(8)]
            assert {answer.status_code for answer in refused} == {429}
            assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
            assert metric(url, "inferplane:request_rejected_total", reason="queue_requests") == 8
        wait_for(lambda: load(url) == {0})

        server.engine.kill()
        wait_for(lambda: 503 in health(url))
        wait_for(lambda: health(url) == {200}, 60)
        assert complete(url).status_code == 200
        assert {metric(url, "inferplane:engine_restarts_total") for _ in range(5)} == {1}

        answers: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: answers.append(complete(url, max_tokens=40))) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: load(url) == {4})
        children = psutil.Process(server.process.pid).children(recursive=True)
        for process in api_processes(server):
            process.terminate()  # as a service manager does, to the whole group
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(20)
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [40] * 4
        assert server.wait_end() == 0
        assert not psutil.wait_procs(children, timeout=5)[1]


def test_what_no_process_can_load_ends_the_start_with_the_cause(scripted_model: Path, served: Any) -> None:
    with served(scripted_model, None, *TWO, "--middleware", "no.such.Middleware") as server:
        assert server.wait_end() == 1
        assert "no.such.Middleware" in server.log[-1]
