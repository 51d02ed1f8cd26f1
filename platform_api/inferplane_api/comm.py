"""Collective communication between the ranks of one group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class GroupSpec(NamedTuple):
    """A group of ranks."""

    name: str
    """"tensor", "pipeline", "expert", "data"."""
    ranks: tuple[int, ...]
    rank: int


class Communicator(Protocol):
    """Collectives over one group; `close` ends it. Tensors are contiguous and on the platform's device."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks; may work in place."""

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenation over ranks along dim."""

    def reduce_scatter(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part of the sum, split along dim."""

    def all_to_all(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Part i goes to rank i."""

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Source's x on every rank."""

    def send(self, x: torch.Tensor, destination: int) -> None:
        """To a rank of the group."""

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Into x."""

    def close(self) -> None:
        """Leave the group."""
