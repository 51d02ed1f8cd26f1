"""What every request passes: its id, the clock, the access log, the last word on failures. Plain ASGI: streams are
neither buffered nor wrapped in tasks, and a chunk costs one function call."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from inferplane.errors import InvalidValue
from inferplane.log import get_logger
from inferplane.server.authentication import route_path
from inferplane.server.errors import CLIENT_CLOSED, to_api_error
from inferplane.server.identity import HEADER, identify, request_id
from inferplane.server.sse import DIRECT_SEND

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from inferplane.config import ServerConfig
    from inferplane.metrics import Metrics

log = get_logger("access")
_MAX_PATH = 256


class Edge:
    """Names, counts, times and logs requests, and answers what no route has caught."""

    def __init__(self, app: ASGIApp, metrics: Metrics, server: ServerConfig) -> None:
        self._app = app
        self._metrics = metrics
        self._echo = server.enable_request_id_headers
        self._logs = not server.disable_uvicorn_access_log
        self._is_innermost = not server.middleware
        """The user's own, which may look at every piece, would stand between this and the routes."""
        self._unlogged = frozenset(server.disable_access_log_for_endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identify(scope)
        if self._is_innermost:
            scope[DIRECT_SEND] = send
        status = 0
        started = time.monotonic()

        def watched(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._echo:
                    message = {**message, "headers": [*message["headers"], (HEADER, _header_value(scope))]}
            return send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if status:
                raise
            await to_api_error(error, request_id=request_id(scope)).response()(scope, receive, watched)
        finally:
            self._done(scope, status or CLIENT_CLOSED, time.monotonic() - started)

    def _done(self, scope: Scope, status: int, seconds: float) -> None:
        handler = getattr(scope.get("route"), "path", "none")
        self._metrics.http(handler, scope["method"], status, seconds)
        if self._logs and route_path(scope) not in self._unlogged:
            method, name = scope["method"], ascii(request_id(scope))
            log.info('%s "%s %s" %d %.3fs %s', _client(scope), method, _path(scope), status, seconds, name)


def _header_value(scope: Scope) -> bytes:
    # The body's id may hold what a header cannot.
    return request_id(scope).encode("ascii", "backslashreplace")


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "-"


def _path(scope: Scope) -> str:
    """As sent, before %-codes are undone: one line, whatever a client writes into it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    text = raw.decode("ascii", "backslashreplace")
    if not text.isprintable():
        text = ascii(text)
    return text if len(text) <= _MAX_PATH else text[:_MAX_PATH] + "…"


def load_middleware(path: str) -> Any:
    """The ASGI middleware class `package.module.Name`. Raises InvalidValue."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidValue("middleware", path, f"cannot be imported: {error}") from error
    if not isinstance(found, type):
        remedy = "name a class that is made with the application and called with scope, receive and send"
        raise InvalidValue("middleware", path, "is no class", remedy=remedy)
    return found
