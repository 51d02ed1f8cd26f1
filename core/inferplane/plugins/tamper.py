"""Tells which names of the core and of the contract were rebound since a moment, and by whose code. Light: stdlib only.

Compared are, by identity, the names of every loaded module of the two packages, the attributes of the classes that it
defines, and the entries of its dictionaries. What is only added counts when it comes from a suspect's modules.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

PACKAGES = ("inferplane", "inferplane_api")
_PREFIXES = tuple(f"{package}." for package in PACKAGES)

_BOOKKEEPING = frozenset(
    (
        "__abstractmethods__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__doc__",
        "__signature__",
        "__warningregistry__",
        "_abc_impl",
    )
)
"""Names that the interpreter and libraries set by themselves, late."""

_ABSENT = object()


class Change(NamedTuple):
    """A name that is not bound to what it was."""

    name: str
    """"inferplane.engine.engine.Engine.step"."""
    origin: str
    """The top-level module whose code the new value is; "" when that cannot be told."""


class Watch:
    """Remembers what every name is bound to. Holds the objects themselves, so that no identity is used again."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._spaces: list[tuple[str, Mapping[str, object], dict[str, object]]] = []
        """(label, the living names, what they were bound to)"""
        self._remember_new_modules()

    def changes(self, suspects: Collection[str]) -> list[Change]:
        """What was rebound, removed, or added by one of the `suspects` (top-level modules), since the last call."""
        found: list[Change] = []
        for label, space, before in self._spaces:
            changed = [*_rebound(label, before, space)]
            if changed or len(space) > len(before):
                changed += _added(label, before, space, suspects)
                before.clear()
                before.update(space)
            found += changed
        for label, space in self._remember_new_modules():
            found += _added(label, {}, space, suspects)
        return found

    def _remember_new_modules(self) -> list[tuple[str, Mapping[str, object]]]:
        new: list[tuple[str, Mapping[str, object]]] = []
        for name, module in list(sys.modules.items()):
            if name not in self._modules and _is_ours(name) and isinstance(module, ModuleType):
                self._modules.add(name)
                new += _spaces(name, module)
        # A dictionary that several modules import is one space: the contract's name for it, or else the shortest.
        new.sort(key=lambda space: (not space[0].startswith("inferplane_api"), len(space[0])))
        known = {id(space) for _, space, _ in self._spaces}
        fresh = []
        for label, space in new:
            if type(space) is not dict or id(space) not in known:
                known.add(id(space))
                fresh.append((label, space))
        self._spaces += [(label, space, dict(space)) for label, space in fresh]
        return fresh


def _is_ours(name: str) -> bool:
    return name in PACKAGES or name.startswith(_PREFIXES)


def _spaces(name: str, module: ModuleType) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(label, names) of a module, and of the classes and dictionaries in it."""
    names = vars(module)
    yield name, names
    for key, value in list(names.items()):
        if isinstance(value, type):
            if value.__module__ == name:
                yield f"{name}.{key}", vars(value)
        elif type(value) is dict and not key.startswith("__"):
            yield f"{name}.{key}", value


def _rebound(label: str, before: dict[str, object], space: Mapping[str, object]) -> Iterator[Change]:
    for key, value in before.items():
        now = space.get(key, _ABSENT)
        if now is not value and not _is_bookkeeping(key):
            yield Change(f"{label}.{key}", _origin(now))


def _added(
    label: str, before: dict[str, object], space: Mapping[str, object], suspects: Collection[str]
) -> Iterator[Change]:
    for key, value in list(space.items()):
        if key not in before and not isinstance(value, ModuleType) and (origin := _origin(value)) in suspects:
            yield Change(f"{label}.{key}", origin)


def _is_bookkeeping(key: object) -> bool:
    return isinstance(key, str) and (key in _BOOKKEEPING or key.startswith(("__pydantic", "__msgspec")))


def _origin(value: object) -> str:
    """The top-level module of a function, class or wrapper of one."""
    for attribute in ("__func__", "fget", "func"):
        value = getattr(value, attribute, None) or value
    # A decorator copies __module__ from what it replaces; the globals are those of the code itself.
    namespace = getattr(value, "__globals__", None)
    module = namespace.get("__name__") if isinstance(namespace, dict) else getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
