"""An engine as a front end sees it; knows nothing about processes or transports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from inferplane.errors import InferplaneError
    from inferplane.messages import Delta, Request, Stats
    from inferplane_api.runner import Capacity

EngineState = Literal["starting", "ready", "hung", "dead", "closed"]


class RequestStream(Protocol):
    """The deltas of one API request's sequences, as they come."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        """(index into the submitted list, delta). Ends when every sequence has a finish_reason. Raises EngineDead with
        the cause when the engine dies or hangs."""

    def steps(self) -> AsyncGenerator[list[tuple[int, Delta]], None]:
        """The same, but each time everything that has come, so that a consumer who is behind catches up in one turn.
        What the consumer ends meanwhile may have more deltas in the same list."""

    def fail(self, error: Exception) -> None:
        """End all sequences; the iterator raises `error` behind what has come already."""

    def abort(self, index: int | None = None) -> None:
        """Stop one sequence, or all; idempotent, harmless after the end."""


class EngineClient(Protocol):
    """One engine (or several behind one face)."""

    client_id: str
    state: EngineState
    failure: InferplaneError | None
    """The cause, in states "hung" and "dead", and in state "starting" that of a restart."""
    stats: Stats
    """As last heard."""
    engine_timeline: list[tuple[str, float]]
    """(phase, seconds) of the engine's start, valid in state "ready"."""

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again."""

    @property
    def capacity(self) -> Capacity:
        """Valid in state "ready"."""

    def submit(self, requests: list[Request]) -> RequestStream:
        """Start. Raises EngineDead, ShuttingDown, QueueFull, or InvalidValue for more sequences than may ever be."""

    async def control(self, name: str, **arguments: Any) -> Any:
        """Call a control operation at a step boundary and wait for the reply."""

    def abort_open(self) -> None:
        """End what runs or waits with finish_reason "abort", and take nothing more."""

    async def close(self, *, at_once: bool = False) -> None:
        """Stop the engine, in good order or at once."""
