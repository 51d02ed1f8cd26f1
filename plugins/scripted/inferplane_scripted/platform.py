"""A platform without a device: all it has is a runner that plays a script."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NoReturn

from inferplane_api.errors import Unsupported
from inferplane_scripted.runner import ScriptedRunner

if TYPE_CHECKING:
    from inferplane_api.comm import GroupSpec
    from inferplane_api.platform import PlatformContext
    from inferplane_api.runner import RunnerContext


class _Moment:
    def record(self) -> None:
        """Everything is done as soon as it is asked for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _Runtime:
    def activate(self) -> None:
        """No device."""

    def event(self) -> _Moment:
        """An event that has passed."""
        return _Moment()

    def stream(self) -> AbstractContextManager[object]:
        """No streams."""
        return nullcontext()

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _Memory:
    def __init__(self, total: int) -> None:
        self._total = total

    def free(self) -> int:
        """All of it."""
        return self._total

    def total(self) -> int:
        """What the probe said."""
        return self._total

    def peak(self) -> int:
        """Nothing is held."""
        return 0

    def reset_peak(self) -> None:
        """Nothing is held."""

    def pinned(self, shape: object, dtype: object) -> NoReturn:
        """There are no tensors here."""
        raise Unsupported("the scripted platform has no tensors", code="scripted.tensors")

    def region(self, tag: str) -> AbstractContextManager[object]:
        """Nothing is held."""
        return nullcontext()


class ScriptedPlatform:
    """Implements `inferplane_api.platform.Platform` as far as a platform with a runner of its own needs it."""

    def __init__(self, context: PlatformContext) -> None:
        self.device = None
        self.runtime = _Runtime()
        self.memory = _Memory(context.device.memory_bytes)

    def communicator(self, group: GroupSpec) -> None:
        """None: one process."""

    def graphs(self) -> None:
        """None: nothing to capture."""

    def create_runner(self, context: RunnerContext) -> ScriptedRunner:
        """The runner that plays the script."""
        return ScriptedRunner(context)

    def close(self) -> None:
        """Nothing to give back."""
