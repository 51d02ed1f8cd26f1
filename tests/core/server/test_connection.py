"""Real sockets: what a client may do before a route sees it, TLS, and a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import openai
import pytest
import trustme

from inferplane.config import Config
from inferplane.errors import InvalidValue
from inferplane.server.connection import ConnectionLimits, LimitedConfig
from inferplane.server.listen import bind
from inferplane.server.run import _Server, _transport_security
from inferplane.server.settings import check_settings
from inferplane.server.tls import refresh_forever, tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@contextlib.asynccontextmanager
async def serving(server: Any, **limits: Any) -> AsyncIterator[Any]:
    """The application on a real socket; gives its address."""
    settings = server.service.prepared.config.server
    allowed = ConnectionLimits.of(settings)._replace(**limits)
    config = LimitedConfig(server.app, allowed, log_level="error", access_log=False, lifespan="off")
    with contextlib.closing(bind(settings)) as listener:
        listener.listen(16)
        async with _transport_security(config, settings):
            running = _Server(config)
            with contextlib.suppress(asyncio.CancelledError):
                task = asyncio.ensure_future(running._serve(sockets=[listener]))
                while not running.started:
                    await asyncio.sleep(0.005)
                try:
                    yield listener.getsockname()
                finally:
                    running.should_exit = True
                    await asyncio.wait_for(task, 10)


async def exchange(address: Any, *pieces: bytes, pause: float = 0.0, limit: float = 10.0) -> bytes:
    """Send the pieces, give all that comes until the server closes."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for piece in pieces:
            with contextlib.suppress(ConnectionError):
                writer.write(piece)
                await writer.drain()
            await asyncio.sleep(pause)
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), limit)
        return b""
    finally:
        writer.close()


def status_and_code(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower(), answer
    return int(head.split()[1]), json.loads(body)["error"]["code"]


GET = b"GET /version HTTP/1.1\r\nhost: a\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


async def test_heads_that_are_too_large(make: Callable[..., Any]) -> None:
    async with serving(make(port=0), head_bytes=2000, num_headers=10) as address:
        large = await exchange(address, GET + b"x: " + b"a" * 3000 + b"\r\n\r\n")
        assert status_and_code(large) == (431, "headers_too_large")
        target = await exchange(address, b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n")
        assert status_and_code(target) == (431, "headers_too_large")
        # A header without an end never reaches the parser's callback.
        endless = await exchange(address, GET + b"x: ", *[b"a" * 1000] * 5, pause=0.01)
        assert status_and_code(endless) == (431, "headers_too_large")
        many = await exchange(address, GET + b"x: y\r\n" * 20 + b"\r\n")
        assert status_and_code(many) == (431, "too_many_headers")
        fine = await exchange(address, GET + b"x: " + b"a" * 1000 + b"\r\nconnection: close\r\n\r\n")
        assert fine.startswith(b"HTTP/1.1 200")


async def test_what_is_no_http(make: Callable[..., Any]) -> None:
    async with serving(make(port=0)) as address:
        for noise in (b"\x16\x03\x01\x02\x00\x01", b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"{}\n"):
            assert status_and_code(await exchange(address, noise)) == (400, "invalid_http")


async def test_a_head_that_trickles(make: Callable[..., Any]) -> None:
    async with serving(make(port=0), head_seconds=0.3) as address:
        assert status_and_code(await exchange(address)) == (408, "request_timeout")
        assert status_and_code(await exchange(address, *[b"G"])) == (408, "request_timeout")
        trickle = [bytes([byte]) for byte in GET]
        assert status_and_code(await exchange(address, *trickle, pause=0.02)) == (408, "request_timeout")
        # The second request of a connection has its own clock.
        second = await exchange(address, GET + b"\r\n", b"GET /ver", limit=5)
        first, _, rest = second.partition(b"HTTP/1.1 408")
        assert first.startswith(b"HTTP/1.1 200")
        assert b"request_timeout" in rest


async def test_a_body_that_trickles(make: Callable[..., Any]) -> None:
    server = make(port=0)
    async with serving(server, body_seconds=0.3) as address:
        head = POST + b"content-length: 50\r\n\r\n"
        answer = await exchange(address, head, *[b"{"] * 20, pause=0.05)
        assert status_and_code(answer) == (408, "request_timeout")
        chunked = POST + b"transfer-encoding: chunked\r\n\r\n"
        answer = await exchange(address, chunked, *[b"1\r\n \r\n"] * 20, pause=0.05)
        assert status_and_code(answer) == (408, "request_timeout")
        # Long generation is no slow body.
        server.engine.hang_after = 0
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/completions", json={"prompt": "Hi"}, timeout=1.0)
        await asyncio.sleep(0.05)
        assert len(server.engine.aborted) == 1


async def test_a_large_body_has_the_time_it_needs(make: Callable[..., Any]) -> None:
    async with serving(make(port=0), body_seconds=0.2) as address:
        # 64 KiB earn four seconds more.
        padding = b" " * 2**16
        body = padding + b'{"prompt": "Hi"}'
        head = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        answer = await exchange(address, head + padding, body[2**16 : -1], body[-1:], pause=0.5)
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_not_read_to_its_end(make: Callable[..., Any], chunked: bool) -> None:
    async with serving(make(port=0, max_body_size=1000)) as address:
        if chunked:
            pieces = [POST + b"transfer-encoding: chunked\r\n\r\n", *[b"3e8\r\n" + b" " * 1000 + b"\r\n"] * 50]
        else:
            pieces = [POST + b"content-length: 999999999\r\n\r\n", b" " * 1000]
        answer = await exchange(address, *pieces, pause=0.001)
        assert answer.startswith(b"HTTP/1.1 413"), answer
        assert b"request_too_large" in answer


async def test_trailers_count_as_headers(make: Callable[..., Any]) -> None:
    async with serving(make(port=0), num_headers=20) as address:
        body = b'{"prompt":"Hi"}'
        head = POST + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(body), body)
        answer = await exchange(address, head + b"x: y\r\n" * 1000 + b"\r\n")
        assert b"too_many_headers" in answer or answer == b""


async def test_pipelined_requests_are_answered_in_order(make: Callable[..., Any]) -> None:
    async with serving(make(port=0)) as address:
        answer = await exchange(
            address, GET + b"\r\n" + GET.replace(b"version", b"load") + b"\r\n" + GET + b"connection: close\r\n\r\n"
        )
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.index(b'"version"') < answer.index(b"server_load") < answer.rindex(b'"version"')


async def test_streams_arrive_over_a_unix_socket(make: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    async with serving(make(uds=path)):
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
            answer = await client.post("/v1/completions", json={"prompt": "Hi", "stream": True})
            assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_client_that_takes_nothing_is_cut_off(make: Callable[..., Any]) -> None:
    server = make(port=0)
    server.engine.outputs[None] = [259] * 10**5
    limits = server.engine.capacity

    class Roomy(type(server.engine)):  # type: ignore[misc]
        capacity = msgspec.structs.replace(limits, max_model_len=10**7)

    server.engine.__class__ = Roomy
    async with serving(server, send_seconds=0.3) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1024)
        body = b'{"prompt": "Hi", "stream": true, "max_tokens": 100000, "logprobs": 5}'
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        for _ in range(1000):
            await asyncio.sleep(0.02)
            if server.engine.aborted:
                break
        assert len(server.engine.aborted) == 1
        assert (await reader.read(100)).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certificate(authority: trustme.CA, folder: Path, name: str = "127.0.0.1") -> dict[str, str]:
    issued = authority.issue_cert(name)
    issued.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {"ssl_keyfile": str(folder / "key.pem"), "ssl_certfile": str(folder / "cert.pem")}


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_tls(make: Callable[..., Any], authority: trustme.CA, tmp_path: Path) -> None:
    files = certificate(authority, tmp_path)
    async with serving(make(port=0, **files)) as (host, port):
        async with httpx.AsyncClient(verify=trusting(authority), base_url=f"https://{host}:{port}") as client:
            assert (await client.get("/health")).status_code == 200
            answer = await client.post("/v1/completions", json={"prompt": "Hi", "stream": True})
            assert answer.text.endswith("data: [DONE]\n\n")
        async with httpx.AsyncClient(base_url=f"https://{host}:{port}") as stranger:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await stranger.get("/health")
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get("/health")
        old = trusting(authority)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        async with httpx.AsyncClient(verify=old, base_url=f"https://{host}:{port}") as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("/health")


async def test_certificates_of_clients(make: Callable[..., Any], authority: trustme.CA, tmp_path: Path) -> None:
    files = certificate(authority, tmp_path)
    required = {**files, "ssl_ca_certs": str(tmp_path / "ca.pem"), "ssl_cert_reqs": 2}
    async with serving(make(port=0, **required)) as (host, port):
        async with httpx.AsyncClient(verify=trusting(authority), base_url=f"https://{host}:{port}") as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/health")
        with_certificate = trusting(authority)
        authority.issue_cert("me@example.com").configure_cert(with_certificate)
        async with httpx.AsyncClient(verify=with_certificate, base_url=f"https://{host}:{port}") as client:
            assert (await client.get("/health")).status_code == 200
        of_another = trusting(authority)
        trustme.CA().issue_cert("me@example.com").configure_cert(of_another)
        async with httpx.AsyncClient(verify=of_another, base_url=f"https://{host}:{port}") as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/health")


async def test_a_changed_certificate_is_used(make: Callable[..., Any], authority: trustme.CA, tmp_path: Path) -> None:
    files = certificate(authority, tmp_path)
    settings = Config.from_flat(files).server
    server = make(port=0, **files)
    other = trustme.CA()
    async with serving(server) as (host, port):
        # The context that serves is the one that is refreshed.
        context = tls_context(settings)
        assert context is not None
        refreshing = asyncio.ensure_future(refresh_forever(settings, context, 0.02))
        try:
            (tmp_path / "key.pem").write_text("half a pair")
            await asyncio.sleep(0.1)
            assert not refreshing.done()
            certificate(other, tmp_path)
            await asyncio.sleep(0.2)
        finally:
            refreshing.cancel()
    assert port
    listener = bind(Config.from_flat({"port": 0}).server)
    with contextlib.closing(listener):
        seen = await asyncio.start_server(lambda _, writer: writer.close(), sock=listener, ssl=context)
        async with seen:
            host, port = listener.getsockname()
            _, writer = await asyncio.open_connection(host, port, ssl=trusting(other))
            writer.close()
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(host, port, ssl=trusting(authority))


def test_certificates_that_cannot_be_used_are_named(authority: trustme.CA, tmp_path: Path) -> None:
    files = certificate(authority, tmp_path)
    (tmp_path / "other.pem").write_bytes(trustme.CA().issue_cert("b").private_key_pem.bytes())
    (tmp_path / "junk.pem").write_text("junk")
    cases: dict[str, dict[str, Any]] = {
        "ssl_certfile": {**files, "ssl_keyfile": str(tmp_path / "other.pem")},
        "ssl_keyfile": {**files, "ssl_keyfile": str(tmp_path / "missing.pem")},
        "ssl_ca_certs": {**files, "ssl_ca_certs": str(tmp_path / "junk.pem")},
        "ssl_cert_reqs": {**files, "ssl_cert_reqs": 2},
    }
    for field, values in cases.items():
        with pytest.raises(InvalidValue) as caught:
            check_settings(Config.from_flat(values).server)
        assert caught.value.field == field


async def test_the_next_request_may_still_come_in_while_one_is_answered(make: Callable[..., Any]) -> None:
    async with serving(make(port=0)) as address:
        body = b'{"prompt": "Hi"}'
        head = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        answer = await exchange(address, GET + b"\r\n" + head + body[:5], b"", body[5:], pause=1.3)
        assert answer.count(b"HTTP/1.1 200") == 2


async def test_an_upgrade_is_no_way_in(make: Callable[..., Any]) -> None:
    async with serving(make(port=0, api_key="k"), head_seconds=0.5) as address:
        for protocol in (b"websocket", b"h2c"):
            head = GET + b"connection: upgrade\r\nupgrade: " + protocol + b"\r\nsec-websocket-key: a\r\n\r\n"
            answer = await exchange(address, head, b"\x81\x00" * 20, pause=0.2)
            assert answer.startswith(b"HTTP/1.1 4"), answer


def test_clients_close_an_idle_connection_before_the_server_does() -> None:
    """A server that closes at the same moment loses the request that is on its way."""
    clients = (openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry, httpx.Limits().keepalive_expiry, 60)  # 60: proxies
    assert Config().server.keep_alive_timeout > max(seconds or 0 for seconds in clients)
