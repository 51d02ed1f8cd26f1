"""The driver against a server whose pace and faults are prescribed."""

from __future__ import annotations

import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
import trustme

from inferplane.bench.datasets import Sample
from inferplane.bench.drive import Load, drive, endpoint_url, first_model, make_pool, probe
from inferplane.bench.statistics import failures_of, samples_of
from inferplane.errors import InferplaneError, InvalidValue

if TYPE_CHECKING:
    from pathlib import Path

    from inferplane.bench.statistics import Outcome
    from tests.core.bench.conftest import FakeServer

PATHS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
SAMPLES = [Sample(f"prompt number {number}", 3, 4) for number in range(6)]


async def run(fake: FakeServer, load: Load, samples: list[Sample] = SAMPLES, **options: float) -> list[Outcome]:
    pool = make_pool(fake.url + PATHS[load.backend], "key", {"X-More": "yes"}, **options)
    try:
        return await drive(pool, load, samples)
    finally:
        pool.close()


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
async def test_known_numbers(fake: FakeServer, backend: str) -> None:
    """The server sleeps at least so long; how much longer a loaded machine takes is not our matter."""
    fake.first_delay, fake.delay = 0.05, 0.02
    outcomes = await run(fake, Load("m", backend=backend, max_concurrency=2))
    assert failures_of(outcomes) == {}
    assert [(o.prompt_tokens, o.output_tokens, len(o.chunk_times)) for o in outcomes] == [(3, 4, 4)] * 6
    found = samples_of(outcomes)
    assert min(found["ttft"]) >= 45
    assert min(found["e2el"]) >= 45 + 3 * 18
    assert min(found["tpot"]) >= 18
    assert sum(found["itl"]) == pytest.approx(sum(e - t for e, t in zip(found["e2el"], found["ttft"], strict=True)))
    # The first chunk of a chat has no text: it must not hide the wait for the first token.
    assert all(o.ttft > o.tpot for o in outcomes if o.tpot is not None)


async def test_what_is_sent(fake: FakeServer) -> None:
    load = Load("m", ignore_eos=True, extra_body={"temperature": 0.5, "model": "other"})
    await run(fake, load, SAMPLES[:1])
    assert fake.bodies == [
        {
            "model": "other",
            "prompt": "prompt number 0",
            "max_tokens": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "temperature": 0.5,
        }
    ]
    assert "authorization: bearer key" in fake.headers[0]
    assert "x-more: yes" in fake.headers[0]


async def test_chat_messages(fake: FakeServer) -> None:
    await run(fake, Load("m", backend="openai-chat"), SAMPLES[:1])
    assert fake.bodies[0]["messages"] == [{"role": "user", "content": "prompt number 0"}]
    assert "prompt" not in fake.bodies[0]


async def test_concurrency_and_connections(fake: FakeServer) -> None:
    fake.delay = 0.001
    await run(fake, Load("m", max_concurrency=3), SAMPLES * 10)
    assert (len(fake.bodies), fake.most_running) == (60, 3)
    assert fake.connections <= 3


async def test_without_usage_chunks_are_counted_and_marked(fake: FakeServer) -> None:
    fake.usage = False
    (outcome,) = await run(fake, Load("m"), SAMPLES[:1])
    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.counted) == (4, 3, False)


@pytest.mark.parametrize(
    ("fault", "value", "kind", "text"),
    [
        ("status", 500, "http 500", "because"),
        ("status", 429, "http 429", "because"),
        ("cut_after", 2, "disconnect", "closed the connection"),
        ("raw", 'data: {"error": {"message": "out of memory"}}\n\n', "stream", "out of memory"),
        ("raw", "data: <html>\n\n", "protocol", "expected"),
        ("raw", 'data: {"choices": [{"text": "a"}]}\n\n', "incomplete", "[DONE]"),
    ],
)
async def test_failures_have_kinds_and_nothing_is_sent_again(
    fake: FakeServer, fault: str, value: object, kind: str, text: str
) -> None:
    setattr(fake, fault, value)
    outcomes = await run(fake, Load("m"))
    assert failures_of(outcomes) == {kind: 6}
    assert all(text in outcome.message for outcome in outcomes)
    assert len(fake.bodies) == 6


async def test_a_request_that_takes_too_long(fake: FakeServer) -> None:
    fake.first_delay = 30.0
    assert failures_of(await run(fake, Load("m"), timeout=0.2)) == {"timeout": 6}


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        pool = make_pool(f"http://127.0.0.1:{taken.getsockname()[1]}/v1/completions", None, {})
        (outcome,) = await drive(pool, Load("m"), SAMPLES[:1])
        assert outcome.failure == "connect"
        with pytest.raises(InferplaneError, match="connect") as caught:
            await probe(pool, Load("m"), 0.0)
        assert "--base-url" in caught.value.remedy


async def test_the_first_request_tells_what_is_wrong(fake: FakeServer) -> None:
    fake.status = 401
    pool = make_pool(fake.url + PATHS["openai"], None, {})
    with pytest.raises(InferplaneError, match="because") as caught:
        await probe(pool, Load("m"), 60.0)
    assert "--api-key" in caught.value.remedy
    pool.close()


def test_the_servers_first_model(fake: FakeServer) -> None:
    assert first_model(fake.url, None) == first_model(fake.url + "/v1/", None) == "listed"


def test_the_first_model_of_a_server_that_the_system_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = b'{"data": [{"id": "listed"}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Models) as server:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        url = f"https://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(InferplaneError, match="certificate verify failed"):
                first_model(url, None)
            assert first_model(url, None, verify=False) == "listed"
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
            assert first_model(url, None) == "listed"
        finally:
            server.shutdown()


@pytest.mark.parametrize(("base", "path", "url"), [
    ("http://h:1", "/v1/completions", "http://h:1/v1/completions"),
    ("http://h:1/v1/", "/v1/completions", "http://h:1/v1/completions"),
    ("http://h:1/llm", "/generate", "http://h:1/llm/generate"),
])  # fmt: skip
def test_addresses(base: str, path: str, url: str) -> None:
    assert endpoint_url(base, path) == url


@pytest.mark.parametrize("url", ["ftp://h", "127.0.0.1:8000", "http://h:x/"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(InvalidValue, match="base_url"):
        make_pool(url, None, {})


def test_a_header_cannot_break_the_line() -> None:
    with pytest.raises(InvalidValue, match="header"):
        make_pool("http://h", None, {"X": "a\r\nY: b"})
