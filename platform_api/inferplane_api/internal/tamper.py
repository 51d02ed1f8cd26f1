"""Tells which names of the core and of the contract were rebound since a moment, and by whose code. Light: stdlib only.

Compared are, by identity, the names of every loaded module of the two packages, the attributes of the classes that it
defines, the entries of its dictionaries, the items of its lists and sets, and the code and defaults of its functions.
What is only added counts when it comes from a suspect's modules or is a method.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, ModuleType
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
        self._contents: dict[int, tuple[str, object, tuple[object, ...] | None]] = {}
        """(label, a function, list or set, what it held), by identity"""
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
        for key, (label, value, held) in list(self._contents.items()):
            if not _same(held, now := _content(value)):
                self._contents[key] = (label, value, now)
                found.append(Change(label, ""))
        for label, space in self._remember_new_modules():
            found += _added(label, {}, space, suspects)
        return found

    def _remember_new_modules(self) -> list[tuple[str, Mapping[str, object]]]:
        new: list[tuple[str, Mapping[str, object]]] = []
        # dict.copy is one step: a list of the items can be interrupted by the collector, and a finalizer may import.
        for name, module in sys.modules.copy().items():
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
        for label, space in fresh:
            self._spaces.append((label, space, dict(space)))
            for key, value in list(space.items()):
                value = getattr(value, "__func__", value)
                if not _is_bookkeeping(key) and (content := _content(value)) is not None:
                    self._contents.setdefault(id(value), (f"{label}.{key}", value, content))
        return fresh


def _content(value: object) -> tuple[object, ...] | None:
    """What a function of ours, a list or a set holds by itself; None for anything else."""
    if isinstance(value, FunctionType):
        if not _is_ours(value.__module__ or ""):
            return None
        return (value.__code__, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    if type(value) is list:
        return tuple(value)
    return tuple(sorted(value, key=id)) if type(value) is set else None


def _same(one: tuple[object, ...] | None, other: tuple[object, ...] | None) -> bool:
    return one is not None and other is not None and len(one) == len(other) and all(map(operator.is_, one, other))


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
    known_class = type(space) is not dict and bool(before)
    for key, value in list(space.items()):
        if key in before or isinstance(value, ModuleType) or _is_bookkeeping(key):
            continue
        origin = _origin(value)
        # A new method hides an inherited one, whose code it is or not.
        if origin in suspects or (known_class and callable(value)):
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
