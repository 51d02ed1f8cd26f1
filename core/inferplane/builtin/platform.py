"""The reference platform: torch on the host device with no ops of its own. Slow and always right; never automatic."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # ships no types
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.comm import GroupSpec
    from inferplane_api.platform import PlatformContext
    from inferplane_api.runner import RunnerContext


class HostEvent:
    """Implements `Event`: host work is done when the call returns."""

    def record(self) -> None:
        """Nothing is outstanding."""

    def synchronize(self) -> None:
        """Nothing is outstanding."""


class HostRuntime:
    """Implements `Runtime` for a device that computes in the calling thread."""

    def activate(self) -> None:
        """The host is always current."""

    def event(self) -> HostEvent:
        """An event that has always passed."""
        return HostEvent()

    def stream(self) -> AbstractContextManager[object]:
        """There is one stream."""
        return nullcontext()

    def synchronize(self) -> None:
        """Nothing is outstanding."""


class HostMemory:
    """Implements `DeviceMemory` with what the operating system says, at most `limit` bytes (0: no limit)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def free(self) -> int:
        """What is available without swapping, and what the limit leaves beside this process's own pages."""
        available = int(psutil.virtual_memory().available)
        if not self._limit:
            return available
        return min(available, max(0, self._limit - int(psutil.Process().memory_info().rss)))

    def total(self) -> int:
        """Memory of the host, or the limit."""
        total = int(psutil.virtual_memory().total)
        return min(total, self._limit) if self._limit else total

    def peak(self) -> int:
        """Largest resident set since the process started, in bytes; the present one where that is not recorded."""
        if sys.platform == "win32":
            return int(psutil.Process().memory_info().peak_wset)
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def reset_peak(self) -> None:
        """The operating system's record cannot be reset; `peak` covers the life of the process."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory: there is nothing to copy to."""
        return torch.empty(tuple(shape), dtype=dtype)

    def region(self, tag: str) -> AbstractContextManager[object]:
        """Regions mean nothing here."""
        return nullcontext()


class ReferencePlatform:
    """Implements `inferplane_api.platform.Platform`."""

    def __init__(self, context: PlatformContext) -> None:
        self.device = torch.device("cpu")
        self.runtime = HostRuntime()
        self.memory = HostMemory(context.device.memory_bytes)
        if context.num_threads is not None:
            torch.set_num_threads(context.num_threads)

    def communicator(self, group: GroupSpec) -> None:
        """None: core's own."""

    def graphs(self) -> None:
        """None: nothing is captured."""

    def create_runner(self, context: RunnerContext) -> None:
        """None: core's torch runner."""

    def close(self) -> None:
        """Nothing is held."""
