"""What a client needs of its way to one engine; knows no transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferplane.channel.address import EngineAddress
    from inferplane.errors import EngineDead
    from inferplane.messages import ToEngine


class Link(Protocol):
    """One incarnation of an engine."""

    @property
    def address(self) -> EngineAddress:
        """Where it is reached."""

    def send(self, message: ToEngine) -> None:
        """Queue a message; dropped when the engine is gone."""

    def end(self, cause: EngineDead) -> None:
        """The engine is of no use any more; the first cause is the one that counts."""

    async def finish(self, client_id: str) -> None:
        """Let the engine end in good order, where it is ours."""

    async def close(self, *, at_once: bool = False) -> None:
        """Give up the way, and the engine with it where it is ours."""
