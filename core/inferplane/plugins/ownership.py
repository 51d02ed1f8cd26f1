"""Who owns a name: an id belongs to one entry point and a namespace to one distribution. Sees no code and no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.plugins.records import Problem

if TYPE_CHECKING:
    from inferplane.plugins.discovery import Discovery

Owner = tuple[str, str]
"""(distribution, version)"""


def ownership_problems(discovery: Discovery) -> list[Problem]:
    """An error for every name that two entry points claim, and for every namespace that two distributions claim.

    The name of a platform is a namespace too: "acme.fast" belongs to the distribution of the platform "acme".
    """
    problems: list[Problem] = []
    namespaces: dict[str, list[Owner]] = {}
    for kind, names in _names(discovery).items():
        for name, owners in names.items():
            if len(owners) > 1:
                problems.append(_clash(f"{kind} {name!r}", "plugin.duplicate", owners))
            elif kind != MODEL:
                namespaces.setdefault(name.partition(".")[0], []).extend(owners)
    for namespace, owners in namespaces.items():
        distinct = list(dict.fromkeys(owners))
        if len(distinct) > 1:
            problems.append(_clash(f"namespace {namespace!r}", "plugin.namespace", distinct))
    return problems + _alias_problems(discovery)


def _alias_problems(discovery: Discovery) -> list[Problem]:
    """An error for an alias that is the id of another distribution's attention backend or format."""
    problems: list[Problem] = []
    for kind, found in (("attention backend", discovery.attention), ("checkpoint format", discovery.formats)):
        owners = {each.spec.id.lower(): (each.distribution, each.version) for each in found}
        for each in found:
            for alias in each.spec.aliases:
                owner = owners.get(alias.lower())
                if owner is not None and owner[0] != each.distribution:
                    claimants = [owner, (each.distribution, each.version)]
                    problems.append(_clash(f"{kind} {alias!r}", "plugin.alias", claimants))
    return problems


MODEL = "model"


def _names(discovery: Discovery) -> dict[str, dict[str, list[Owner]]]:
    """Kind to name to those who claim it."""
    kinds: dict[str, dict[str, list[Owner]]] = {}

    def add(kind: str, name: str, distribution: str, version: str) -> None:
        kinds.setdefault(kind, {}).setdefault(name, []).append((distribution, version))

    for platform in discovery.platforms:
        add("platform", platform.name, platform.distribution, platform.version)
    for attention in discovery.attention:
        add("attention backend", attention.spec.id, attention.distribution, attention.version)
    for kernel in discovery.kernels:
        add("kernel", kernel.spec.id, kernel.distribution, kernel.version)
    for weights in discovery.formats:
        add("checkpoint format", weights.spec.id, weights.distribution, weights.version)
    for processor in discovery.logits_processors:
        add("logits processor", processor.spec.id, processor.distribution, processor.version)
    for model in discovery.models:
        add(MODEL, model.spec.model_type, model.distribution, model.version)
    return kinds


def _clash(what: str, code: str, owners: list[Owner]) -> Problem:
    named = " and ".join(f"{distribution} {version}" for distribution, version in owners)
    last = owners[-1][0]
    return Problem(
        level="error",
        code=code,
        message=f"{what} is claimed by {named}",
        remedy=f"pip uninstall one of them, or start with --disable-plugins {last}",
    )
