"""Routes for developers, only with --server-dev-mode: what changes the engine's state from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from inferplane.server.context import ServerContext


class Done(msgspec.Struct, frozen=True):
    """The engine's answer."""

    result: Any = None


async def reset_prefix_cache(context: ServerContext, request: Request) -> Done:
    """Forget every cached prefix at the next step boundary. Raises ApiError 403 or 503."""
    return await _control(context, request, "reset_prefix_cache")


async def _control(context: ServerContext, request: Request, name: str) -> Done:
    origin = request.headers.get("origin")
    if origin is not None and origin not in context.server.allowed_origins:
        # A POST without a body needs no preflight: any web page could send it to a server on loopback.
        raise ApiError(403, "this route takes no calls from web pages of another origin", code="forbidden_origin")
    context.require_ready()
    return Done(await context.client.control(name))
