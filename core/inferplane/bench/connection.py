"""HTTP/1.1 POST over kept-alive connections, as cheap as asyncio allows; knows no OpenAI and no statistics.

A general client costs a driver more than the server under test costs its chunks: here, bytes go from the socket
through the C parser to the sink of the request, with the time at which they came.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import httptools

from inferplane.errors import InferplaneError, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

IDLE_SECONDS = 2.0
"""An idle connection that is older is not used again: servers close theirs after about five, and nothing is retried."""

MAX_REFUSAL_BYTES = 4096


class Sink(Protocol):
    """Takes the body of a successful answer."""

    def feed(self, data: bytes, now: float) -> None:
        """Bytes of the body, and when they came."""
        ...


class Reply(NamedTuple):
    """How an exchange ended."""

    status: int
    refusal: bytes
    """The beginning of the body where the status is not 200."""
    started: float
    """When the request was written."""
    ended: float


class ExchangeFailed(InferplaneError):
    """No whole answer came; `code` is the kind: connect or disconnect or protocol or timeout."""


class Target(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None = None

    @classmethod
    def from_url(cls, url: str, *, verify: bool = True) -> Target:
        """Of "http://host:port/path" or https. Raises InvalidValue."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidValue("base_url", url, str(error)) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValue("base_url", url, "is no http or https address", remedy="such as http://127.0.0.1:8000")
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            if not verify:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, port or (443 if tls else 80), path, tls)


class HttpPool:
    """Connections to one server; grows with the number of exchanges at once."""

    def __init__(
        self,
        target: Target,
        headers: Mapping[str, str],
        *,
        timeout: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._clock = clock
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        host = f"[{target.host}]" if ":" in target.host else target.host
        fields = {"Host": f"{host}:{target.port}", "Content-Type": "application/json", **headers}
        lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {_clean(name, value)}" for name, value in fields.items())]
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")

    def now(self) -> float:
        """The clock of every time that is reported."""
        return self._clock()

    async def post(self, body: bytes, sink: Sink) -> Reply:
        """Send the body and wait for the end of the answer, which the sink gets. Raises ExchangeFailed."""
        connection = self._reuse() or await self._connect()
        message = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        try:
            reply = await asyncio.wait_for(connection.exchange(message, sink), self._timeout)
        except TimeoutError as error:
            connection.close()
            raise ExchangeFailed(f"no whole answer within {self._timeout:g} s", code="timeout") from error
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        return reply

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._all):
            connection.close()
        self._idle.clear()

    def _reuse(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and self._clock() - connection.used < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        target = self._target
        make = asyncio.get_running_loop().create_connection(
            lambda: _Connection(self._clock, self._all), target.host, target.port, ssl=target.tls
        )
        try:
            _, connection = await asyncio.wait_for(make, self._timeout)
        except TimeoutError as error:
            raise ExchangeFailed(f"no connection within {self._timeout:g} s", code="timeout") from error
        except OSError as error:
            raise ExchangeFailed(str(error), code="connect") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, clock: Callable[[], float], members: set[_Connection]) -> None:
        self._clock = clock
        self._members = members
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._sink: Sink | None = None
        self._parser: Any = None
        self._status = 0
        self._refusal = b""
        self._now = self._started = 0.0
        self.used = 0.0
        self.reusable = True

    async def exchange(self, message: bytes, sink: Sink) -> Reply:
        """Write a request and wait for its answer."""
        if self._transport is None or self._transport.is_closing():
            raise ExchangeFailed("the server closed the connection", code="disconnect")
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._status, self._refusal = sink, 0, b""
        self._done = asyncio.get_running_loop().create_future()
        self._started = self._clock()
        self._transport.write(message)
        return await self._done

    def close(self) -> None:
        """Close at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = transport  # type: ignore[assignment]
        self._members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio."""
        self.reusable = False
        self._members.discard(self)
        self._fail("the server closed the connection before the end of the answer", "disconnect")

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        if self._done is None:
            # Nothing was asked: whatever this is, it must not become part of the next answer.
            self.close()
            return
        self._now = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What the sink raised comes wrapped; the caller finds it as the cause.
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self.reusable = False
            self._fail(f"not what was expected of the server: {cause}", "protocol", cause)
            self.close()

    def on_headers_complete(self) -> None:
        """Of the parser."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Of the parser."""
        if self._status == 200 and self._sink is not None:
            self._sink.feed(data, self._now)
        elif len(self._refusal) < MAX_REFUSAL_BYTES:
            self._refusal += data

    def on_message_complete(self) -> None:
        """Of the parser."""
        if self._status < 200 or self._done is None:
            return
        done, self._done = self._done, None
        self.used = self._now
        self.reusable = self.reusable and self._parser.should_keep_alive()
        if not self.reusable:
            self.close()
        if not done.done():
            done.set_result(Reply(self._status, self._refusal, self._started, self._now))

    def _fail(self, text: str, kind: str, cause: BaseException | None = None) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            failure = ExchangeFailed(text, code=kind)
            failure.__cause__ = cause
            done.set_exception(failure)


def _clean(name: str, value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise InvalidValue("header", name, "its value must be printable ASCII")
    return value
