"""`python -m inferplane_api.testing.patch_child`: remembers every name of the contract, the kit and core; loads and
makes a plugin's parts; says which names are no longer what they were."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane_api.internal.loading import find
from inferplane_api.internal.tamper import PACKAGES, Watch
from inferplane_api.spec import DeviceInfo, PlatformSpec
from inferplane_api.testing.child import private_stdout
from inferplane_api.testing.kit import make_platform

if TYPE_CHECKING:
    from collections.abc import Callable


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded."""

    paths: list[str]
    providers: list[str] = []
    """Those of the paths whose `ops` is called."""
    own: list[str] = []
    """Top-level modules of the distribution."""
    platform: PlatformSpec | None = None
    """Constructed on `device` where both are given."""
    device: DeviceInfo | None = None


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, and what could not be loaded."""

    changed: list[str]
    errors: list[str]


def import_everything() -> None:
    """Import every module of the contract, of the kit and of core, which may be absent."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}.", onerror=lambda name: None):
            if not module.name.endswith(".__main__"):
                # A module of core's that lacks an optional package is nobody's lie, and nobody can patch it either.
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)


def load(request: Loads) -> Patched:
    """Load everything and compare."""
    import_everything()
    watch, errors = Watch(), []

    def attempt(path: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            errors.append(f"{path}: {type(error).__name__}: {error}")

    for path in request.paths:
        attempt(path, lambda path=path: find(path))  # type: ignore[misc]  # mypy infers no lambda with a default
    platform, device = request.platform, request.device
    if platform is not None and device is not None:
        attempt(platform.load, lambda: make_platform(platform, device))
        for path in request.providers:
            attempt(path, lambda path=path: find(path).ops())  # type: ignore[misc]
    changed = sorted({change.name for change in watch.changes(request.own)})
    return Patched(changed=changed, errors=list(dict.fromkeys(errors)))


def main() -> None:
    """Answer the one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Loads)
    with private_stdout() as (_, channel):
        channel.write(msgspec.json.encode(load(request)))
        channel.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
