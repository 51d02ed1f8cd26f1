"""Where an import would find a module, told without importing anything; knows no distribution."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def located(module: str) -> ModuleSpec | None:
    """The spec of a top-level module as the finders give it; what this process has imported already does not count."""
    importlib.invalidate_caches()
    for finder in sys.meta_path:
        spec = finder.find_spec(module, None)
        if spec is not None:
            return spec
    return None


def modules_from(dotted: str) -> Iterator[tuple[str, Path | None]]:
    """(module, its file) of every package on the way to a module, and of itself; None: nothing there has code.

    A folder without an `__init__` has no file and is passed over. A package that changes its own `__path__` is not
    followed: that is code, which must not run here.
    """
    parts = dotted.split(".")
    spec = located(parts[0])
    for index in range(len(parts)):
        name = ".".join(parts[: index + 1])
        if index:
            folders = list(spec.submodule_search_locations or ()) if spec is not None else []
            spec = PathFinder.find_spec(name, folders)
        if spec is None:
            yield name, None
            return
        if spec.origin is not None:
            yield name, Path(spec.origin)
