"""Which logits processors an engine loads: every installed one, and the classes that the user names. Imports none."""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING

from inferplane.errors import InvalidValue
from inferplane.plan.types import Component, Decision, PlannedProcessor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.plugins.records import FoundProcessor

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
SETTING = "logits_processors"


def select_processors(
    asked: Sequence[str], found: Sequence[FoundProcessor], *, runner_seam: bool, locked: bool
) -> tuple[tuple[PlannedProcessor, ...], Decision | None]:
    """Processors in the order of their ids, then the user's classes in theirs.

    Raises InvalidValue for what is no module:Class, and where the platform or locked plugins leave no place for one.
    """
    if asked and runner_seam:
        problem = "this platform brings its own runner, which takes no logits processors"
        raise InvalidValue(SETTING, list(asked), problem, remedy="leave it out")
    if asked and locked:
        problem = "locked plugins are those of the lock file, and it holds no classes"
        raise InvalidValue(SETTING, list(asked), problem, remedy="install it as a package, or use --plugins-mode auto")
    if runner_seam or not (asked or found):
        return (), None
    planned = [
        PlannedProcessor(
            name=f"{each.spec.id} of {each.distribution} {each.version}",
            component=Component(
                id=each.spec.id, load=each.spec.load, distribution=each.distribution, version=each.version
            ),
            parameters=each.spec.parameters,
        )
        for each in sorted(found, key=lambda each: each.spec.id)
    ]
    for name in asked:
        if not _REFERENCE.fullmatch(name):
            problem = "must be module:Class"
            raise InvalidValue(SETTING, name, problem, remedy="installed processors need no setting")
        planned.append(PlannedProcessor(name=name, component=_named(name)))
    source = "user" if asked else "automatic"
    chosen = ", ".join(each.component.id for each in planned)
    reason = "a request asks for one by its parameters"
    return tuple(planned), Decision(subject="logits processors", chosen=chosen, source=source, reason=reason)


def _named(name: str) -> Component:
    """The class, and the distribution that its module belongs to; a module of no distribution has neither."""
    owners = importlib.metadata.packages_distributions().get(name.partition(":")[0].partition(".")[0], [])
    if not owners:
        return Component(id=name, load=name, distribution="", version="")
    return Component(id=name, load=name, distribution=owners[0], version=importlib.metadata.version(owners[0]))
