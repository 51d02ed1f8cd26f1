"""What a platform supplies in the engine process: devices, memory, streams, graphs, communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from inferplane_api.comm import Communicator, GroupSpec
    from inferplane_api.runner import Runner, RunnerContext
    from inferplane_api.spec import DeviceInfo


class PlatformContext(NamedTuple):
    """What a platform is constructed with."""

    device: DeviceInfo
    options: Mapping[str, str | int | float | bool]
    """The platform's declared options, every one with the user's value or the default."""
    num_threads: int | None = None
    """The user's limit on host threads; None: the platform decides."""


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> None:
        """Mark the current point of the current stream."""

    def synchronize(self) -> None:
        """Block until the point has passed."""


class Runtime(Protocol):
    """Streams, events and synchronization of one device."""

    def activate(self) -> None:
        """Make the device current in this thread; called once before anything else."""

    def event(self) -> Event:
        """A new event."""

    def stream(self) -> AbstractContextManager[object]:
        """A side stream as a context manager; a no-op where the device has one stream."""

    def synchronize(self) -> None:
        """Block until all work of the device is done."""


class DeviceMemory(Protocol):
    """Memory of one device, measured, in bytes."""

    def free(self) -> int:
        """Free now, container limits applied."""

    def total(self) -> int:
        """Total that this process could ever use."""

    def peak(self) -> int:
        """Most that this process has held since `reset_peak`."""

    def reset_peak(self) -> None:
        """Start a new peak measurement."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A host tensor from which copies to the device are asynchronous; plain memory where that means nothing."""

    def region(self, tag: str) -> AbstractContextManager[object]:
        """Allocations inside belong to `tag` ("weights", "kv", "graphs")."""


class GraphCapture(Protocol):
    """Capture and replay per shape bucket; for a compiled device, compilation per bucket."""

    def capture(self, key: tuple[int, ...], function: Callable[[], Any]) -> Callable[[], Any]:
        """Record `function`, which reads and writes address-stable buffers, under `key`, the step's number of rows.

        What is returned replays it and returns what `function` did, at the same addresses, until the next replay of any
        key. Recording may run the function or not: the caller replays for a first result, and the function must bear
        being run twice. Raises Unsupported where the function cannot be recorded."""


@runtime_checkable
class Platform(Protocol):
    """One device of one kind, constructed once in the engine process after selection."""

    device: torch.device
    runtime: Runtime
    memory: DeviceMemory

    def __init__(self, context: PlatformContext) -> None: ...

    def communicator(self, group: GroupSpec) -> Communicator | None:
        """The platform's own communicator; None: core's on torch.distributed, with the declared backend name."""

    def graphs(self) -> GraphCapture | None:
        """None where the device cannot capture."""

    def create_runner(self, context: RunnerContext) -> Runner | None:
        """A runner of the platform's own (declared with `runner_seam`); None: core's torch runner."""

    def close(self) -> None:
        """Give everything back; called once."""
