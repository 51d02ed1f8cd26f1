"""A connection's limits before there is a request: size and count of headers, and how slowly a client may send.

Knows HTTP/1.1 as uvicorn parses it; knows no route and no application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from inferplane.log import get_logger
from inferplane.server.errors import ApiError

if TYPE_CHECKING:
    import asyncio

    from inferplane.config import ServerConfig

log = get_logger(__name__)

MIN_BODY_RATE = 16 * 2**10
"""Bytes of a body that earn one second more."""

LINGER_SECONDS = 2.0
"""For which a refused client is still listened to: closing at once could take the answer away before it was read."""

_IDLE, _HEAD, _BODY, _ENDED = range(4)


class ConnectionLimits(NamedTuple):
    """What a client may do before a route sees it."""

    head_bytes: int
    num_headers: int
    head_seconds: float
    body_seconds: float
    send_seconds: float

    @classmethod
    def of(cls, server: ServerConfig) -> ConnectionLimits:
        """The user's."""
        return cls(
            head_bytes=server.max_header_size,
            num_headers=server.max_header_count,
            head_seconds=server.header_timeout,
            body_seconds=server.body_timeout,
            send_seconds=server.send_timeout,
        )


class LimitedConfig(uvicorn.Config):
    """uvicorn's settings with our limits, for `LimitedProtocol`."""

    def __init__(self, app: Any, limits: ConnectionLimits, **settings: Any) -> None:
        super().__init__(app, http=LimitedProtocol, ws="none", **settings)
        self.limits = limits


class _Refused(Exception):
    """Raised inside the parser's callbacks, which ends the parsing."""


class LimitedProtocol(HttpToolsProtocol):
    """Answers 431 to a head that is too large, 408 to one or to a body that does not arrive, 400 to what is no HTTP.

    A timer runs only while a message is incomplete between two reads: a request that arrives at once costs none.
    """

    def __init__(self, config: LimitedConfig, **rest: Any) -> None:
        super().__init__(config=config, **rest)
        self._limits = config.limits
        self._phase = _IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._head_bytes = 0
        self._body_bytes = 0
        self._raw_head_bytes = 0
        self._refusal: ApiError | None = None

    def connection_made(self, transport: Any) -> None:
        """A client that connects and says nothing has as long as one that sends a head."""
        super().connection_made(transport)
        self._arm(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or was sent away."""
        self._disarm()
        self._end_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client has stopped reading, and the buffers are full: what waits to be sent cannot wait for ever."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self._limits.send_seconds, self._cut_off)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._end_stall()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Bytes; a head that grows without end is counted here, since the parser reports only whole headers."""
        if self._phase == _ENDED:
            return
        within_head = self._phase == _HEAD
        super().data_received(data)
        if self._phase == _ENDED:
            return
        if self._phase == _HEAD:
            self._raw_head_bytes = self._raw_head_bytes + len(data) if within_head else 0
            if self._raw_head_bytes > self._limits.head_bytes:
                self._refuse(self._head_too_large())
                return
        if self._phase == _IDLE:
            self._disarm()
        elif self._timer is None:
            limits = self._limits
            self._arm(limits.head_seconds if self._phase == _HEAD else limits.body_seconds)

    def on_message_begin(self) -> None:
        """Parser: the first byte of a request."""
        self._phase = _HEAD
        self._head_bytes = self._body_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Parser: a piece of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header, or one trailer behind a body in chunks."""
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= self._limits.num_headers:
            self._refusal = ApiError(
                431, f"a request may have {self._limits.num_headers} headers here", code="too_many_headers"
            )
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Parser: the head is there; the application starts."""
        self._phase = _BODY
        self._disarm()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Parser: a piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Parser: the request is there."""
        self._phase = _IDLE
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out; where the body is not in yet, it is thrown away for a moment only."""
        super().on_response_complete()
        # Of this request: with pipelining, the body may be the next one's.
        if self._phase == _BODY and self.cycle.response_complete:
            self._disarm()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser gives up: for us, or for what is no HTTP."""
        self._refuse(self._refusal or ApiError(400, "this is no valid HTTP/1.1 request", code="invalid_http"))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes:
            self._refusal = self._head_too_large()
            raise _Refused

    def _head_too_large(self) -> ApiError:
        limit = self._limits.head_bytes
        return ApiError(431, f"target and headers may have {limit} bytes here", code="headers_too_large")

    def _arm(self, seconds: float) -> None:
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _cut_off(self) -> None:
        self._stalled = None
        log.info("connection closed: the client has taken nothing for %g s", self._limits.send_seconds)
        self.transport.abort()

    def _late(self) -> None:
        if self._phase == _BODY:
            allowed = self._limits.body_seconds + self._body_bytes / MIN_BODY_RATE
            left = self._since + allowed - self.loop.time()
            # A paused transport is our slowness, not the client's.
            if self.flow.read_paused or left > 0:
                self._timer = self.loop.call_later(max(left, 1.0), self._late)
                return
        self._timer = None
        part = "body" if self._phase == _BODY else "head"
        self._refuse(ApiError(408, f"the request's {part} did not arrive in time", code="request_timeout"))

    def _refuse(self, answer: ApiError) -> None:
        if self._phase == _ENDED or self.transport.is_closing():
            return
        log.info("connection closed: %d %s", answer.status, answer.message)
        self._phase = _ENDED
        self._disarm()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                # Nothing may be written into the middle of another answer.
                self.transport.close()
                return
        body = answer.encoded()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[answer.status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
