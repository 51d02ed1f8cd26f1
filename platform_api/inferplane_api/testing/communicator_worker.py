"""`python -m inferplane_api.testing.communicator_worker`: one of two processes that try a platform's collectives."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane_api.spec import DeviceInfo, PlatformSpec
from inferplane_api.testing.child import private_stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from inferplane_api.platform import Platform

NOTHING_DECLARED = "none"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the group."""

    spec: PlatformSpec
    device: DeviceInfo
    rank: int
    world: int


class TorchCollectives:
    """The three collectives that are tried, on torch.distributed; the rendezvous is in the environment."""

    def __init__(self, backend: str, member: Member) -> None:
        import torch.distributed as distributed

        self._distributed = distributed
        self._world = member.world
        distributed.init_process_group(backend, rank=member.rank, world_size=member.world)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """As `Communicator.all_reduce`."""
        self._distributed.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """As `Communicator.all_gather`."""
        import torch

        parts = [torch.empty_like(x) for _ in range(self._world)]
        self._distributed.all_gather(parts, x)
        return torch.cat(parts, dim=dim)

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """As `Communicator.broadcast`."""
        self._distributed.broadcast(x, source)
        return x

    def close(self) -> None:
        """As `Communicator.close`."""
        self._distributed.destroy_process_group()


def try_collectives(communicator: Any, platform: Platform, member: Member) -> str:
    """Which collective gave what; "fine" when all are right."""
    import torch

    def own(rank: int) -> torch.Tensor:
        return (torch.arange(6, dtype=torch.float32).reshape(2, 3) + 10 * rank).to(platform.device)

    ranks = range(member.world)
    expected: dict[str, tuple[Callable[[], torch.Tensor], torch.Tensor]] = {
        "all_reduce": (lambda: communicator.all_reduce(own(member.rank)), sum((own(r) for r in ranks), own(0) * 0)),
        "all_gather": (lambda: communicator.all_gather(own(member.rank), dim=-1), torch.cat([*map(own, ranks)], -1)),
        "broadcast": (lambda: communicator.broadcast(own(member.rank), 1), own(1)),
    }
    for name, (action, want) in expected.items():
        got = action()
        platform.runtime.synchronize()
        if got.shape != want.shape or not torch.equal(got.cpu(), want.cpu()):
            return f"{name} gives {got.cpu().tolist()}, not {want.cpu().tolist()}"
    return "fine"


def run(member: Member) -> str:
    """Make the platform, enter the group, try the collectives."""
    from inferplane_api.comm import GroupSpec
    from inferplane_api.testing.kit import make_platform

    platform = make_platform(member.spec, member.device)
    group = GroupSpec(name="tensor", ranks=tuple(range(member.world)), rank=member.rank)
    communicator: Any = platform.communicator(group)
    if communicator is None:
        if not member.spec.communicator:
            return NOTHING_DECLARED
        communicator = TorchCollectives(member.spec.communicator, member)
    answer = try_collectives(communicator, platform, member)
    communicator.close()
    platform.close()
    return answer


def main() -> None:
    """Answer the one request."""
    member = msgspec.json.decode(sys.stdin.buffer.read(), type=Member)
    with private_stdout() as (_, channel):
        channel.write(run(member).encode())
        channel.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
