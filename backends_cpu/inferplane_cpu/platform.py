"""The host's processors as a platform: threads, memory, and a runtime without anything to wait for."""

from __future__ import annotations

import math
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # ships no types
import torch

from inferplane_cpu import cgroup
from inferplane_cpu.allocator import keep_freed_memory
from inferplane_cpu.native import executor
from inferplane_cpu.native.graphs import NativeGraphs
from inferplane_cpu.native.library import library_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.comm import GroupSpec
    from inferplane_api.platform import PlatformContext
    from inferplane_api.runner import RunnerContext

PROC_STATUS = Path("/proc/self/status")
PROC_CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What resets VmHWM, see proc(5)."""


class CPUEvent:
    """Implements `Event`: work is done when the call returns."""

    def record(self) -> None:
        """Nothing is outstanding."""

    def synchronize(self) -> None:
        """Nothing is outstanding."""


class CPURuntime:
    """Implements `Runtime`: work is done in the calling thread and one pool, torch's or the native kernels'."""

    def __init__(self, num_threads: int, isa: str | None = None) -> None:
        self._num_threads = num_threads
        self._isa = isa

    def activate(self) -> None:
        """Set the number of computing threads and how the C library keeps memory, for the process.

        The native kernels take over the threads when something is first computed with them.
        """
        keep_freed_memory()
        torch.set_num_threads(self._num_threads)
        executor.configure(self._num_threads, isa=self._isa)

    def event(self) -> CPUEvent:
        """An event that has always passed."""
        return CPUEvent()

    def stream(self) -> AbstractContextManager[object]:
        """There is one stream."""
        return nullcontext()

    def synchronize(self) -> None:
        """Nothing is outstanding."""


class CPUMemory:
    """Implements `DeviceMemory`: the operating system's numbers within the control group's limits."""

    def __init__(self, mount: Path = cgroup.MOUNT, membership: Path = cgroup.MEMBERSHIP) -> None:
        self._mount = mount
        self._membership = membership

    def free(self) -> int:
        """Available without swapping, and within every limit."""
        available = int(psutil.virtual_memory().available)
        limits = cgroup.memory_limits(self._mount, self._membership)
        return min([available, *(limit.free for limit in limits)])

    def total(self) -> int:
        """Physical memory, or the tightest limit."""
        limits = cgroup.memory_limits(self._mount, self._membership)
        return min([int(psutil.virtual_memory().total), *(limit.limit for limit in limits)])

    def peak(self) -> int:
        """Largest resident set since `reset_peak`, or since the start where the system cannot reset it."""
        return _peak_resident_bytes()

    def reset_peak(self) -> None:
        """Start a new measurement (Linux only; a system that forbids it keeps the old peak)."""
        if PROC_CLEAR_REFS.exists():
            try:
                PROC_CLEAR_REFS.write_text(RESET_PEAK)
            except OSError:
                return

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory: there is nothing to copy to."""
        return torch.empty(tuple(shape), dtype=dtype)

    def region(self, tag: str) -> AbstractContextManager[object]:
        """Regions mean nothing here."""
        return nullcontext()


class CPUPlatform:
    """Implements `inferplane_api.platform.Platform`."""

    def __init__(self, context: PlatformContext) -> None:
        self.device = torch.device("cpu")
        self.num_threads = context.num_threads or usable_threads()
        isa = context.options.get("isa")
        self.runtime = CPURuntime(self.num_threads, None if isa is None else str(isa))
        self.memory = CPUMemory()

    def communicator(self, group: GroupSpec) -> None:
        """None: core's own, on gloo."""

    def graphs(self) -> NativeGraphs | None:
        """Recorded lists of kernel calls; None in a build without the native kernels."""
        return NativeGraphs(executor.executor()) if library_path() is not None else None

    def create_runner(self, context: RunnerContext) -> None:
        """None: core's torch runner."""

    def close(self) -> None:
        """Nothing is held."""


def usable_threads(mount: Path = cgroup.MOUNT, membership: Path = cgroup.MEMBERSHIP) -> int:
    """Processors of the affinity mask, no more than the quota (rounded up), the physical cores and OMP_NUM_THREADS.

    The variable is how every program on the host is told to share it; two processes whose threads wait for each other
    by spinning on the same processors are far slower than either alone.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [allowed, psutil.cpu_count(logical=False) or allowed]
    quota = cgroup.cpu_quota(mount, membership)
    if quota is not None:
        limits.append(math.ceil(quota))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal():
        limits.append(int(asked))
    return max(1, min(limits))


def _peak_resident_bytes() -> int:
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    if PROC_STATUS.exists():
        # Unlike getrusage, this is the process's own: a parent's peak is not inherited over exec.
        for line in PROC_STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
