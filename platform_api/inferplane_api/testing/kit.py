"""What the cases share: the declarations, and the one platform object of this process, made when first needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from inferplane_api.testing.case import NotTested

if TYPE_CHECKING:
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
        self.remembered: dict[str, Any] = {}
        """Truths that took long to compute."""
        self._platform: Platform | None = None
        self._loaded: dict[str, Any] = {}

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
            self._platform = make_platform(self.spec, self.device)
        return self._platform

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
        """Close the platform."""
        if self._platform is not None:
            self._platform.close()
            self._platform = None


def make_platform(spec: PlatformSpec, device: DeviceInfo) -> Platform:
    """A platform with the default of every option, its device made current."""
    from inferplane_api.platform import PlatformContext

    options = {option.name: option.default for option in spec.options if option.default is not None}
    platform: Platform = find(spec.load)(PlatformContext(device=device, options=options))
    platform.runtime.activate()
    return platform


def find(path: str) -> Any:
    """Import "module:attribute"."""
    module, _, attributes = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in attributes.split("."):
        value = getattr(value, name)
    return value
