"""What a request may take: how long in all, how long in the queue, and on whose account. Knows headers, no body."""

from __future__ import annotations

import math
import time
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from inferplane.server.errors import ApiError
from inferplane.telemetry import TRACE_HEADERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from inferplane.config import ServerConfig

REQUEST_TIMEOUT = "x-request-timeout"
"""Seconds that the whole answer may take. It can shorten the server's own limit, never stretch it."""
QUEUE_TIMEOUT = "x-queue-timeout"
"""Seconds until the engine must have begun."""


class Claim(NamedTuple):
    """Times are seconds since `since`, by the monotonic clock; None: no limit."""

    since: float
    request_timeout: float | None = None
    queue_timeout: float | None = None
    share: str = ""
    """Equal for requests that share what the policy "fair" gives to one: a key's digest, or the user that it names."""

    trace: Mapping[str, str] = {}
    """The headers of a trace that the request is a part of, where traces are recorded."""

    def left(self) -> float | None:
        """Seconds until the request must be done; at least 0."""
        return _left(self.since, self.request_timeout)

    def queue_left(self) -> float | None:
        """Seconds until the engine must have begun; at least 0."""
        return _left(self.since, self.queue_timeout)


def claim_of(request: Request, server: ServerConfig, user: str | None) -> Claim:
    """Read the headers. Raises ApiError 400 naming the one that is wrong."""
    headers = request.headers
    key = headers.get("authorization", "").partition(" ")[2].strip() or headers.get("x-api-key", "").strip()
    share = f"user {user or ''}" if not key or not _has_keys(server) else sha256(key.encode()).hexdigest()
    return Claim(
        time.monotonic(),
        _shorter(server.request_timeout, headers.get(REQUEST_TIMEOUT), REQUEST_TIMEOUT),
        _shorter(server.queue_timeout, headers.get(QUEUE_TIMEOUT), QUEUE_TIMEOUT),
        share,
        {name: headers[name] for name in TRACE_HEADERS if name in headers} if server.otlp_traces_endpoint else {},
    )


def _has_keys(server: ServerConfig) -> bool:
    return bool(server.api_key) or server.api_key_file is not None


def _shorter(limit: float | None, text: str | None, name: str) -> float | None:
    if text is None:
        return limit
    try:
        wanted = float(text)
    except ValueError:
        wanted = math.nan
    if not 0 < wanted < math.inf:
        raise ApiError(
            400, f"the header {name} must be a number of seconds above 0, not {text[:50]!r}", code="invalid_value",
            param=name,
        )  # fmt: skip
    return wanted if limit is None else min(wanted, limit)


def _left(since: float, limit: float | None) -> float | None:
    return None if limit is None else max(0.0, since + limit - time.monotonic())
