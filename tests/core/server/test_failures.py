"""Clients that leave, engines that die, start or give up, queues that are full."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from inferplane.errors import EngineDead

HELLO, WORLD = 259, 260


class Visitor:
    """An ASGI client that can leave in the middle."""

    def __init__(self, app: Any, path: str, body: dict[str, Any]) -> None:
        self._app = app
        self._body = json.dumps(body).encode()
        self._given = False
        self._left = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }

    async def receive(self) -> dict[str, Any]:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def visit(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._app(self._scope, self.receive, self.send))

    def leave(self) -> None:
        self._left.set()


PATHS = [
    ("/v1/completions", {"prompt": ["a", "b"]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 2}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang_after", [0, 3])
@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_leaving_aborts_what_runs(server: Any, path: str, body: Any, hang_after: int, stream: bool) -> None:
    server.engine.outputs[None] = [HELLO] * 5
    server.engine.hang_after = hang_after
    visitor = Visitor(server.app, path, {**body, "stream": stream})
    visit = visitor.visit()
    await asyncio.wait_for(server.engine.hanging.wait(), 5)
    assert (await server.http.get("/load")).json() == {"server_load": 1}
    assert server.engine.aborted == []
    visitor.leave()
    await asyncio.wait_for(visit, 5)
    assert sorted(server.engine.aborted) == sorted(request.request_id for request in server.engine.submitted)
    assert len(server.engine.aborted) == 2
    assert (await server.http.get("/load")).json() == {"server_load": 0}
    assert 'finished_reason="abort"} 2.0' in (await server.http.get("/metrics")).text.replace(
        'engine="0",', ""
    ).replace('model_name="tiny",', "").replace(',model_name="tiny"', "")


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_an_engine_that_dies_before_the_first_token(server: Any, path: str, body: Any) -> None:
    server.engine.die_after = 0
    for stream in (False, True):
        answer = await server.http.post(path, json={**body, "stream": stream})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine.dead"
        assert "error id" in answer.json()["error"]["message"]
        assert "the scripted engine died" not in answer.text, "the cause is for the log"


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_an_engine_that_dies_inside_a_stream(server: Any, path: str, body: Any) -> None:
    server.engine.die_after = 2
    server.engine.outputs[None] = [HELLO, WORLD, HELLO]
    answer = await server.http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    *before, last, rest = answer.text.split("\n\n")
    assert rest == ""
    assert sum("Hello" in event for event in before) == 2
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["type"] == "server_error"
    assert "error id" in error["message"]
    assert "the scripted engine died" not in answer.text
    assert "[DONE]" not in answer.text
    whole = await server.http.post(path, json=body)
    assert whole.status_code == 503


async def test_a_dead_engine_turns_everything_red(server: Any) -> None:
    server.engine.state = "dead"
    server.engine.failure = EngineDead("out of memory", code="engine.dead", remedy="use less", error_id="0badcafe")
    for answer in (
        await server.http.get("/health"),
        await server.http.get("/ping"),
        await server.complete(),
        await server.chat(stream=True),
    ):
        assert answer.status_code == 503
        assert answer.json()["error"]["message"].startswith("the engine has stopped; error id 0badcafe")
        assert "out of memory" not in answer.text, "the cause is for the log"
    assert (await server.http.get("/v1/models")).status_code == 200


async def test_a_starting_engine_is_not_ready(server: Any) -> None:
    server.engine.state = "starting"
    for answer in (await server.http.get("/health"), await server.complete(), await server.chat()):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_starting")
        assert int(answer.headers["retry-after"]) > 0
    models = (await server.http.get("/v1/models")).json()
    assert models["data"][0]["max_model_len"] == 256


async def test_a_full_queue_says_when_to_come_back(server: Any) -> None:
    server.engine.full = True
    for stream in (False, True):
        answer = await server.complete(stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.json()["error"]["type"] == "rate_limit_error"


async def test_a_request_that_the_engine_gives_up(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    server.engine.error = "the logits held NaN"
    whole = await server.complete()
    assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
    assert "the logits held NaN" in whole.json()["error"]["message"]
    streamed = await server.complete(stream=True)
    *_, last, _ = streamed.text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "generation_failed"


async def test_an_unexpected_error_shows_no_inside(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(requests: Any) -> Any:
        raise RuntimeError("secret path /root/x")

    monkeypatch.setattr(server.engine, "submit", explode)
    for answer in (await server.complete(), await server.complete(stream=True)):
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert answer.json()["error"]["code"] == "internal_error"


async def test_the_end_of_the_application_closes_the_engine(server: Any) -> None:
    async with server.app.router.lifespan_context(server.app):
        assert server.engine.state == "ready"
    assert server.engine.state == "closed"
    assert (await server.complete()).status_code == 503


async def test_a_request_that_takes_too_long_is_given_up(server: Any) -> None:
    server.engine.outputs[None] = [HELLO] * 5
    for hang_after, stream in ((0, False), (0, True), (2, False), (2, True)):
        server.engine.hang_after = hang_after
        body = {"model": "tiny", "prompt": "Hi", "stream": stream}
        answer = await server.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.25"})
        if stream and hang_after:
            assert answer.status_code == 200
            error = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 504
            error = answer.json()["error"]
        assert error["code"] == "request_timeout"
        assert "0.25 s" in error["message"]
    assert len(server.engine.aborted) == 4


async def test_the_servers_own_limits_cannot_be_stretched(make: Any) -> None:
    server = make(request_timeout=0.05, queue_timeout=7.0)
    server.engine.hang_after = 0
    headers = {"X-Request-Timeout": "1000", "X-Queue-Timeout": "3"}
    answer = await server.http.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
    assert answer.status_code == 504
    assert 2.5 < server.engine.submitted[0].queue_timeout <= 3.0


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
async def test_a_timeout_that_is_no_number_is_named(server: Any, value: str) -> None:
    answer = await server.http.post("/v1/completions", json={"prompt": "Hi"}, headers={"X-Request-Timeout": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-timeout")


async def test_keys_and_users_name_the_share(make: Any) -> None:
    keyed, keyless = make(api_key=("one", "two")), make()
    for server, headers, user in (
        (keyed, {"Authorization": "Bearer one"}, "a"),
        (keyed, {"x-api-key": "one"}, "b"),
        (keyed, {"x-api-key": "two"}, "a"),
        (keyless, {"x-api-key": "any"}, "a"),
        (keyless, {}, "b"),
    ):
        assert (
            await server.http.post("/v1/completions", json={"prompt": "Hi", "user": user}, headers=headers)
        ).is_success
    first, same, other = (request.share for request in keyed.engine.submitted)
    assert first == same != other
    assert "one" not in first, "the engine's messages hold no key"
    assert len({request.share for request in keyless.engine.submitted}) == 2


async def test_a_text_that_cannot_fit_is_not_even_read(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = server.service.prepared.tokenizer
    monkeypatch.setattr(tokenizer, "encode", lambda *_: pytest.fail("read"))
    answer = await server.complete(prompt="a" * 70_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_rejections_are_counted(server: Any) -> None:
    server.engine.full = True
    await server.complete()
    text = (await server.http.get("/metrics")).text
    assert 'reason="queue_requests"} 1.0' in text


async def test_a_tokenizer_that_raises_is_an_internal_error_of_that_request_only(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = server.service.prepared.tokenizer

    def explode(*_: Any) -> Any:
        raise RuntimeError("secret path /root/x")

    with monkeypatch.context() as patched:
        patched.setattr(tokenizer, "encode", explode)
        for answer in (await server.complete(), await server.chat(stream=True)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert "secret" not in answer.text
    assert (await server.complete()).status_code == 200
    assert server.app.state.context.text.tokenizer.num_pending == 0


async def test_who_leaves_while_its_text_is_read_reaches_no_engine(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    tokenizer = server.service.prepared.tokenizer
    monkeypatch.setattr(tokenizer, "encode", lambda *_: [1] if gate.wait(5) else [])
    for path, body in PATHS:
        visitor = Visitor(server.app, path, {**body, "stream": True})
        visit = visitor.visit()
        while not server.app.state.context.text.tokenizer.num_pending:
            await asyncio.sleep(0.01)
        visitor.leave()
        await asyncio.wait_for(visit, 5)
        assert server.app.state.context.text.tokenizer.num_pending == 0
    gate.set()
    assert server.engine.submitted == []


async def test_every_abort_has_a_cause_in_the_metrics(make: Any) -> None:
    async def aborted(server: Any) -> dict[str, float]:
        text = (await server.http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("inferplane:request_aborted_total{")]
        return {line.split('reason="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}

    none = dict.fromkeys(("disconnect", "timeout", "shutdown", "engine", "sibling"), 0.0)
    server = make()
    await server.complete()
    assert await aborted(server) == none
    server.engine.die_after = 1
    await server.complete(n=2)
    assert await aborted(server) == {**none, "engine": 2}
    server = make(request_timeout=0.05)
    server.engine.hang_after = 1
    assert (await server.complete()).status_code == 504
    assert await aborted(server) == {**none, "timeout": 1}
    server = make()
    server.engine.hang_after = 1
    visitor = Visitor(server.app, "/v1/completions", {"prompt": "Hi", "stream": True})
    visit = visitor.visit()
    await asyncio.wait_for(server.engine.hanging.wait(), 5)
    visitor.leave()
    await asyncio.wait_for(visit, 5)
    assert await aborted(server) == {**none, "disconnect": 1}
