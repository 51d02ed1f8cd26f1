"""The chip as core's runner uses it: constructed once, in the engine process, after it was chosen."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from inferplane_examplechip.chip import Account

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.comm import GroupSpec
    from inferplane_api.platform import PlatformContext
    from inferplane_api.runner import RunnerContext


class ExampleChipEvent:
    """Implements `Event`: the simulated chip is done when a call returns."""

    def record(self) -> None:
        """Nothing is outstanding."""

    def synchronize(self) -> None:
        """Nothing is outstanding."""


class ExampleChipRuntime:
    """Implements `Runtime`. A real one makes its device current, and waits where these return at once."""

    def activate(self) -> None:
        """The simulated chip is always current."""

    def event(self) -> ExampleChipEvent:
        """An event that has always passed."""
        return ExampleChipEvent()

    def stream(self) -> AbstractContextManager[object]:
        """There is one stream."""
        return nullcontext()

    def synchronize(self) -> None:
        """Nothing is outstanding."""


class ExampleChipMemory:
    """Implements `DeviceMemory` with the chip's own account; the host's memory does not matter."""

    def __init__(self, total: int) -> None:
        self._account = Account(total)

    def free(self) -> int:
        """What core may plan with: it sizes the cache from this."""
        return self._account.total - self._account.used()

    def total(self) -> int:
        """What the probe told."""
        return self._account.total

    def peak(self) -> int:
        """Most that was held at the end of a region."""
        return self._account.peak

    def reset_peak(self) -> None:
        """Start from what is held now."""
        self._account.peak = self._account.used()

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory: no copy is asynchronous here."""
        return torch.empty(tuple(shape), dtype=dtype)

    def region(self, tag: str) -> AbstractContextManager[object]:
        """What is allocated inside is charged to the chip."""
        return self._account.charge(tag)


class ExampleChipPlatform:
    """Implements `inferplane_api.platform.Platform`."""

    def __init__(self, context: PlatformContext) -> None:
        # A real device has its own torch.device type; the simulated one lives in host memory.
        self.device = torch.device("cpu")
        self.runtime = ExampleChipRuntime()
        self.memory = ExampleChipMemory(context.device.memory_bytes)
        if context.num_threads is not None:
            torch.set_num_threads(context.num_threads)

    def communicator(self, group: GroupSpec) -> None:
        """None: one chip."""

    def graphs(self) -> None:
        """None: nothing is captured."""

    def create_runner(self, context: RunnerContext) -> None:
        """None: core's torch runner, which pads to the declared buckets."""

    def close(self) -> None:
        """Nothing is held beyond what the runner lets go of."""
