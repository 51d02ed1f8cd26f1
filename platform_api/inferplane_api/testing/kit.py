"""What the cases share: the declarations, and the one platform object of this process, made when first needed."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from inferplane_api.internal.loading import find
from inferplane_api.internal.tamper import Watch
from inferplane_api.testing.case import NotTested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import torch

    from inferplane_api.platform import Platform
    from inferplane_api.spec import DeviceInfo, PlatformSpec
    from inferplane_api.testing.declarations import Declarations


class Kit:
    """One run of the kit in one process."""

    def __init__(self, declarations: Declarations, level: str, folder: Path) -> None:
        self.declarations = declarations
        self.level = level
        self.folder = folder
        """For files of the run."""
        self.truths: dict[Any, Any] = {}
        """The reference platform's answers, which took long to compute."""
        self.plans: dict[Any, Any] = {}
        """What core planned for a tiny model whose tokens were right."""
        self._platform: Platform | None = None
        self._loaded: dict[str, Any] = {}
        self._watch: Watch | None = None

    @property
    def spec(self) -> PlatformSpec:
        """The platform's descriptor. Raises NotTested when it cannot be read."""
        if self.declarations.spec is None:
            raise NotTested(f"the descriptor of {self.declarations.platform} cannot be read")
        return self.declarations.spec

    @property
    def device(self) -> DeviceInfo:
        """The first device. Raises NotTested when the probe found none."""
        probe = self.declarations.probe
        if probe is None:
            raise NotTested(f"the probe of {self.declarations.platform} gave no result")
        if not self.declarations.present:
            reasons = "; ".join(map(str, probe.reasons)) or "no reason given"
            raise NotTested(f"the probe says {probe.state.value}: {reasons}")
        return probe.devices[0]

    def platform(self) -> Platform:
        """The platform, constructed once and activated. Raises NotTested without a device."""
        if self._platform is None:
            self._platform = self.make_platform()
        return self._platform

    def make_platform(self, given: Mapping[str, str | int | float | bool] | None = None) -> Platform:
        """A platform with the given options, which the caller closes. Raises NotTested without a device."""
        spec, device = self.spec, self.device
        self.watch()
        return make_platform(spec, device, given)

    @contextlib.contextmanager
    def other_options(self, given: Mapping[str, str | int | float | bool]) -> Iterator[None]:
        """Inside, `platform` is one with these options."""
        self.close()
        self._platform = self.make_platform(given)
        try:
            yield
        finally:
            self.close()

    def watch(self) -> None:
        """From now on, remember what the contract, the kit and core are; called before the plugin's code runs."""
        if self._watch is None:
            self._watch = Watch()

    def patched(self, own: frozenset[str]) -> list[str]:
        """Names of them that the plugin, whose top-level modules are `own`, has rebound since `watch`."""
        changes = [] if self._watch is None else self._watch.changes(own)
        # Core's own code may rebind a name of core's while it works.
        return sorted({change.name for change in changes if change.origin in own})

    @property
    def torch_device(self) -> torch.device:
        """Where tensors go."""
        return self.platform().device

    def load(self, path: str) -> Any:
        """What is at "module:attribute"; the platform is made first, as in an engine process."""
        self.platform()
        if path not in self._loaded:
            self._loaded[path] = find(path)
        return self._loaded[path]

    def close(self) -> None:
        """Close the platform. It is gone, whatever its own `close` raises."""
        platform, self._platform = self._platform, None
        if platform is not None:
            platform.close()


def make_platform(
    spec: PlatformSpec, device: DeviceInfo, given: Mapping[str, str | int | float | bool] | None = None
) -> Platform:
    """A platform with the given options, the others as their variable or default says, its device made current."""
    from inferplane_api.internal.option_values import option_values
    from inferplane_api.platform import PlatformContext

    options = {**option_values(spec, os.environ), **(given or {})}
    platform: Platform = find(spec.load)(PlatformContext(device=device, options=options))
    platform.runtime.activate()
    return platform
