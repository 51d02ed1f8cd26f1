"""What the contract will drop: the registry of deprecated fields and values, and whether a descriptor uses one.

Knows descriptors as data. Core warns once for each use, naming the plugin and the replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec


class Deprecation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that plugins should stop using."""

    name: str
    """"AttentionSpec.graph_level", a field; or "AttentionSpec.graph_level=never", a value of it or an item."""
    since: str
    """The version of the contract that deprecated it."""
    replacement: str
    removal: str
    """The first version without it."""


DEPRECATIONS: tuple[Deprecation, ...] = ()
"""Everything that is deprecated now."""


def deprecated_uses(descriptor: msgspec.Struct, registry: Iterable[Deprecation] | None = None) -> list[Deprecation]:
    """The deprecations that a descriptor, or a record inside it, makes use of.

    A field is used when it is not at its default; a value when the field holds it.
    """
    deprecations = DEPRECATIONS if registry is None else registry
    return [each for each in deprecations if any(_uses(record, each.name) for record in _records(descriptor))]


def _records(record: msgspec.Struct) -> Iterator[msgspec.Struct]:
    """The descriptor and every record inside it."""
    yield record
    for name in record.__struct_fields__:
        value = getattr(record, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, msgspec.Struct):
                yield from _records(item)


def _uses(record: msgspec.Struct, name: str) -> bool:
    place, equals, wanted = name.partition("=")
    kind, _, field = place.partition(".")
    if kind != type(record).__name__ or field not in record.__struct_fields__:
        return False
    value = getattr(record, field)
    if equals:
        items = value if isinstance(value, (tuple, frozenset)) else (value,)
        return wanted in map(str, items)
    (default,) = (each.default for each in msgspec.structs.fields(type(record)) if each.name == field)
    return bool(value != default)
