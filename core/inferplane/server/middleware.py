"""What every request passes: the key, and the clock. Plain ASGI, so that streams are neither buffered nor wrapped."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

from inferplane.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from inferplane.metrics import Metrics

OPEN_PATHS = frozenset({"/health", "/ping"})
"""Health probes carry no key."""


class Authentication:
    """Every route but the health probes needs one of the keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "a valid API key is needed: Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response()(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    given.append(key.strip())
            elif name == b"x-api-key":
                given.append(value.strip())
        # No early exit: the time says nothing about which key or how much of it was right.
        return any([hmac.compare_digest(one, key) for one in given for key in self._keys])


class HttpMetrics:
    """Counts and times requests by route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499
        started = time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = scope.get("route")
            handler = getattr(route, "path", "none")
            self._metrics.http(handler, scope["method"], status, time.monotonic() - started)
