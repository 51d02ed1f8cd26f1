"""`python -m inferplane_api.testing.patch_child`: notes every function of the contract and of core, loads a plugin's
parts, and says which functions are no longer the same."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from types import FunctionType

import msgspec

from inferplane_api.spec import DeviceInfo, PlatformSpec
from inferplane_api.testing.child import private_stdout
from inferplane_api.testing.kit import find, make_platform

PACKAGES = (
    "inferplane_api",
    "inferplane_api.reference",
    "inferplane.builtin",
    "inferplane.engine",
    "inferplane.layers",
    "inferplane.models",
    "inferplane.plan",
    "inferplane.plugins",
    "inferplane.runner",
    "inferplane.text",
)
"""Whose modules are watched; of core, what runs in the engine and decides."""


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded."""

    paths: list[str]
    platform: PlatformSpec | None = None
    """Constructed on `device` where both are given."""
    device: DeviceInfo | None = None


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, and what could not be loaded."""

    changed: list[str]
    errors: list[str]


def snapshot() -> dict[str, object]:
    """Every module's own functions, classes and methods, as "module:attribute", to the code behind it."""
    found: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(PACKAGES) or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            found.update(_identities(f"{name}:{attribute}", value, name))
    return found


def _identities(path: str, value: object, module: str) -> dict[str, object]:
    if isinstance(value, FunctionType):
        return {path: (value, value.__code__)}
    if not isinstance(value, type):
        return {}
    found: dict[str, object] = {path: value}
    if value.__module__ == module:
        for name, member in list(vars(value).items()):
            if isinstance(member, (FunctionType, staticmethod, classmethod, property)):
                found[f"{path}.{name}"] = (member, getattr(member, "__code__", None))
    return found


def import_packages() -> None:
    """Import all that is watched; core may be absent."""
    for package in PACKAGES:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            continue
        module = importlib.import_module(package)
        for child in pkgutil.iter_modules(module.__path__, f"{package}."):
            # A module of core's that lacks an optional package is nobody's lie, and nobody can patch it either.
            with contextlib.suppress(ImportError):
                importlib.import_module(child.name)


def load(request: Loads) -> Patched:
    """Load everything and compare."""
    import_packages()
    before = snapshot()
    errors = []
    for path in request.paths:
        try:
            find(path)
        except Exception as error:
            errors.append(f"{path}: {type(error).__name__}: {error}")
    if request.platform is not None and request.device is not None:
        try:
            make_platform(request.platform, request.device)
        except Exception as error:
            errors.append(f"{request.platform.load}: {type(error).__name__}: {error}")
    after = snapshot()
    return Patched(changed=sorted(path for path, value in before.items() if after.get(path) != value), errors=errors)


def main() -> None:
    """Answer the one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Loads)
    with private_stdout() as (_, channel):
        channel.write(msgspec.json.encode(load(request)))
        channel.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
