"""Which installed plugins may be used: the user's allow-list and deny-list. Knows names only.

A name is a distribution or an entry point. KIND:NAME ("platforms:acme") limits or removes within one kind only, so
that a list of allowed models does not switch off the platform.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from packaging.utils import canonicalize_name

from inferplane.errors import InvalidValue
from inferplane.plugins.inventory import CORE, KINDS, PluginEntry


class Policy(NamedTuple):
    """The user's lists."""

    allow: tuple[str, ...] | None = None
    """None: everything that is installed."""
    deny: tuple[str, ...] = ()
    allow_field: str = "plugins"
    """Where the allow-list came from, for messages."""
    only_listed: bool = False
    """True: a name for one kind does not leave the other kinds alone; what is not named is not used."""


def policy_from(plugins: Iterable[str] | None, disabled: Iterable[str], environ: Mapping[str, str]) -> Policy:
    """The configuration's lists; INFERPLANE_PLUGINS (names with commas between) where it has no allow-list."""
    if plugins is not None:
        return Policy(tuple(plugins), tuple(disabled))
    text = environ.get("INFERPLANE_PLUGINS", "").strip()
    if not text:
        return Policy(None, tuple(disabled))
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    return Policy(names, tuple(disabled), allow_field="INFERPLANE_PLUGINS")


def usable(entries: Iterable[PluginEntry], policy: Policy) -> list[PluginEntry]:
    """The entries that the lists leave; core's own always stay.

    Raises InvalidValue for a name that is not installed (with a suggestion) and for denying a part of core.
    """
    everything = list(entries)
    allow = [_parse(name, policy.allow_field) for name in policy.allow or ()]
    deny = [_parse(name, "disable_plugins") for name in policy.deny]
    for name, field in [(name, policy.allow_field) for name in allow] + [(name, "disable_plugins") for name in deny]:
        _require_installed(name, field, everything)
    for name in deny:
        if any(name.names(entry) for entry in everything if entry.distribution == CORE):
            raise InvalidValue("disable_plugins", name.text, "is a part of the core, which other parts rely on")
    return [
        entry
        for entry in everything
        if entry.distribution == CORE
        or (_allowed(entry, allow, policy) and not any(name.names(entry) for name in deny))
    ]


def denying_name(entry: PluginEntry, policy: Policy) -> str:
    """The first name of the deny-list that is one of the entry, as the user wrote it; "" without one."""
    return next((name for name in policy.deny if _parse(name, "disable_plugins").names(entry)), "")


class _Name(NamedTuple):
    text: str
    kind: str | None
    name: str

    def names(self, entry: PluginEntry) -> bool:
        if self.kind is not None and self.kind != entry.kind:
            return False
        return self.name == entry.name or canonicalize_name(self.name) == entry.distribution


def _parse(text: str, field: str) -> _Name:
    kind, separator, name = text.partition(":")
    if not separator:
        return _Name(text, None, text)
    if kind not in KINDS:
        raise InvalidValue(field, text, f"{kind!r} is not a kind of plugin", remedy=f"one of {', '.join(KINDS)}")
    return _Name(text, kind, name)


def _allowed(entry: PluginEntry, allow: list[_Name], policy: Policy) -> bool:
    if policy.allow is None:
        return True
    if policy.only_listed:
        return any(name.names(entry) for name in allow)
    of_kind = [name for name in allow if name.kind == entry.kind]
    general = [name for name in allow if name.kind is None]
    if of_kind:
        return any(name.names(entry) for name in of_kind + general)
    return any(name.names(entry) for name in general) if general else bool(allow)


def _require_installed(name: _Name, field: str, entries: list[PluginEntry]) -> None:
    if any(name.names(entry) for entry in entries):
        return
    known = sorted({entry.distribution for entry in entries} | {entry.name for entry in entries})
    near = difflib.get_close_matches(name.name, known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "`inferplane plugins` lists what is installed"
    raise InvalidValue(field, name.text, "no such plugin is installed", remedy=remedy)
