"""Which installed plugins may be used, by mode (auto, listed, locked) and by the user's lists; reads metadata only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inferplane.errors import InvalidValue
from inferplane.plugins.inventory import CORE, PluginEntry
from inferplane.plugins.lockfile import read_lock, require_locked
from inferplane.plugins.policy import Policy, denying_name, policy_from, usable
from inferplane.plugins.records import DISABLED, NOT_LISTED, NOT_LOCKED, LeftOut
from inferplane_api.spec import Reason

if TYPE_CHECKING:
    from inferplane.config import PlatformConfig

LISTED, LOCKED = "listed", "locked"


class Admitted(NamedTuple):
    """The entries that may be used, and those that are installed and may not."""

    entries: list[PluginEntry]
    left_out: tuple[LeftOut, ...]


def admit(everything: list[PluginEntry], config: PlatformConfig, environ: Mapping[str, str]) -> Admitted:
    """Apply the mode, then the lists.

    Raises InvalidValue for `listed` without a list and for a name that is not installed; InferplaneError when what is
    installed is not what the lock file holds.
    """
    policy = policy_from(config.plugins, config.disable_plugins, environ)
    if config.plugins_mode == LISTED:
        if policy.allow is None:
            remedy = "--plugins NAME ..., or INFERPLANE_PLUGINS=NAME,..."
            raise InvalidValue("plugins_mode", LISTED, "no plugin is listed", remedy=remedy)
        policy = policy._replace(only_listed=True)
    locked = _locked_names(Path(config.plugins_lock)) if config.plugins_mode == LOCKED else None
    entries = [
        entry
        for entry in usable(everything, policy)
        if locked is None or entry.distribution == CORE or entry.distribution in locked
    ]
    return Admitted(entries, _left_out(everything, entries, policy, locked))


def _locked_names(path: Path) -> frozenset[str]:
    lock = read_lock(path)
    require_locked(lock, path)
    return frozenset(plugin.name for plugin in lock.plugins)


def _left_out(
    everything: Iterable[PluginEntry], entries: Iterable[PluginEntry], policy: Policy, locked: frozenset[str] | None
) -> tuple[LeftOut, ...]:
    """One record a distribution and reason."""
    used = set(entries)
    found: dict[tuple[str, str, Reason, str], list[PluginEntry]] = {}
    for entry in everything:
        if entry not in used:
            reason = _reason(entry, policy, locked)
            named = denying_name(entry, policy) if reason.code == DISABLED else ""
            found.setdefault((entry.distribution, entry.version, reason, named), []).append(entry)
    return tuple(
        LeftOut(
            distribution=distribution,
            version=version,
            names=tuple(entry.name for entry in entries),
            kinds=tuple(entry.kind for entry in entries),
            reason=reason,
            named=named,
        )
        for (distribution, version, reason, named), entries in found.items()
    )


def _reason(entry: PluginEntry, policy: Policy, locked: frozenset[str] | None) -> Reason:
    if locked is not None and entry.distribution not in locked:
        return Reason(code=NOT_LOCKED, hint="not in the lock file")
    if denying_name(entry, policy):
        return Reason(code=DISABLED, hint="by --disable-plugins")
    return Reason(code=NOT_LISTED, hint=f"not named by {policy.allow_field}")
