"""Routes for developers, only with --server-dev-mode: what changes the engine's state from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext


class Done(msgspec.Struct, frozen=True):
    """The engine's answer."""

    result: Any = None


async def reset_prefix_cache(context: ServerContext) -> Done:
    """Forget every cached prefix at the next step boundary. Raises ApiError 503."""
    return await _control(context, "reset_prefix_cache")


async def _control(context: ServerContext, name: str) -> Done:
    context.require_ready()
    return Done(await context.client.control(name))
