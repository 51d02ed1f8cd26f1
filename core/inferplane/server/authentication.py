"""Whether a request carries one of the API keys. Plain ASGI; knows no routes but those that need none."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

from inferplane.server.errors import ApiError
from inferplane.server.page.static import PAGE_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from inferplane.config import ServerConfig

PROBES = frozenset({"/health", "/ping"})
"""Health probes carry no key."""


def open_paths(server: ServerConfig) -> frozenset[str]:
    """The paths that need no key."""
    found = set(PROBES)
    if server.metrics_without_key:
        found.add("/metrics")
    if not server.disable_page:
        # A static file: it asks its reader for the key, and sends it with every request of its own.
        found.add(PAGE_PATH)
    return frozenset(found)


class Authentication:
    """Every other route needs one of the keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], open_paths: frozenset[str] = PROBES) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan" or route_path(scope) in self._open_paths or self._allowed(scope["headers"]):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response()(scope, receive, send)

    def _allowed(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given: list[bytes] = []
        for name, value in headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    given.append(key.strip())
            elif name == b"x-api-key":
                given.append(value.strip())
        # Digests have one length, and there is no early exit: the time tells neither which key nor how much was right.
        digests = [sha256(one).digest() for one in given]
        return any([hmac.compare_digest(one, key) for one in digests for key in self._digests])


def route_path(scope: Scope) -> str:
    """The path as the routes know it, without the prefix of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
