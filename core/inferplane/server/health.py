"""Is it well, how busy is it, what was decided: /health, /ping, /version, /load, /server_info."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inferplane import __version__
from inferplane.plan.record import selection_record

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext


def health(context: ServerContext) -> dict[str, Any]:
    """Raises ApiError 503 with the cause while the engine starts, hangs or is dead."""
    context.require_ready()
    return {"status": "ok"}


def version() -> dict[str, Any]:
    """Of the core."""
    return {"version": __version__}


def load(context: ServerContext) -> dict[str, Any]:
    """API requests under way."""
    return {"server_load": context.num_running}


def server_info(context: ServerContext) -> dict[str, Any]:
    """The record of the selection, what the user said, what was measured, and how long starting took."""
    prepared, client = context.prepared, context.client
    plan = prepared.plan
    config = prepared.config.model_dump(mode="json", exclude={"server": {"api_key"}})
    ready = client.state == "ready"
    return {
        "version": __version__,
        "state": client.state,
        "failure": None if client.failure is None else str(client.failure),
        "platform": plan.platform_name,
        "dtype": plan.dtype,
        "selection": selection_record(plan),
        "timeline": _timeline(prepared.timeline),
        "engine_timeline": _timeline(client.engine_timeline),
        "capacity": msgspec.to_builtins(client.capacity) if ready else None,
        "stats": msgspec.to_builtins(client.stats),
        "config": config,
    }


def _timeline(phases: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"phase": phase, "seconds": seconds} for phase, seconds in phases]
