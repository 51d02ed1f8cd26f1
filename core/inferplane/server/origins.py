"""Which web pages may send requests to a server without a key. Plain ASGI; knows no route.

A browser keeps pages of another origin from sending JSON, unless the page's host name has been made to point at this
machine: then it believes that both are one. The page's `Origin` still tells.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from inferplane.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from inferplane.config import ServerConfig


class OwnPages:
    """Refuses requests of web pages that are neither the server's own nor allowed; other programs send no origin."""

    def __init__(self, app: ASGIApp, server: ServerConfig) -> None:
        self._app = app
        self._allowed = frozenset(server.allowed_origins)
        self._on_loopback = server.uds is None and is_loopback(server.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin")
        if origin is None or self._is_ours(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1")):
            await self._app(scope, receive, send)
            return
        problem = "web pages of this origin may not call this server; see --allowed-origins"
        await ApiError(403, problem, code="forbidden_origin").response()(scope, receive, send)

    def _is_ours(self, origin: str, host: str) -> bool:
        if origin in self._allowed or "*" in self._allowed:
            return True
        scheme, sign, rest = origin.partition("://")
        if sign and scheme not in ("http", "https"):
            # An application's own window, such as an editor's: no page of the web.
            return True
        # On loopback a host name proves nothing, since a page's name can be made to point here.
        return is_loopback(_host_of(origin)) if self._on_loopback else bool(sign) and rest == host


def is_loopback(host: str) -> bool:
    """True for localhost and addresses that only this machine reaches."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
