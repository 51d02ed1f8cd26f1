"""Is it well, how busy is it, what was decided: /health, /ping, /version, /load, /server_info, /startup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inferplane import __version__
from inferplane.config.secrets import HIDDEN
from inferplane.plan.provenance import public_config
from inferplane.plan.record import selection_record

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext


class Health(msgspec.Struct, frozen=True):
    """Well."""

    status: str = "ok"


class Version(msgspec.Struct, frozen=True):
    """Of the core."""

    version: str


class Load(msgspec.Struct, frozen=True):
    """API requests under way."""

    server_load: int


class Phase(msgspec.Struct, frozen=True):
    """A part of the start."""

    phase: str
    seconds: float


class Startup(msgspec.Struct, frozen=True):
    """How long starting took: the front end's phases, and the engine's, which ran beside them."""

    state: str
    front_end: list[Phase]
    engine: list[Phase]


def health(context: ServerContext) -> Health:
    """Raises ApiError 503 with the cause while the engine starts, hangs or is dead."""
    context.require_ready()
    return Health()


def version() -> Version:
    """Of the core."""
    return Version(__version__)


def load(context: ServerContext) -> Load:
    """API requests under way."""
    return Load(context.load)


def startup(context: ServerContext) -> Startup:
    """The start-up timeline."""
    client = context.client
    return Startup(client.state, _timeline(context.prepared.timeline), _timeline(client.engine_timeline))


def server_info(context: ServerContext) -> dict[str, Any]:
    """The record of the selection, what the user said, what was measured, and how long starting took."""
    prepared, client = context.prepared, context.client
    plan = prepared.plan
    hidden = [setting.path.rpartition(".")[2] for setting in plan.settings if setting.value == HIDDEN]
    config = public_config(prepared.config, hidden)
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


def _timeline(phases: list[tuple[str, float]]) -> list[Phase]:
    return [Phase(phase, seconds) for phase, seconds in phases]
