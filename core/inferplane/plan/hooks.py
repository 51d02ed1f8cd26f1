"""The launcher's 1:N hooks: validation before a start, the record of the selection after it. Imports no plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inferplane.errors import InferplaneError
from inferplane.plan.provenance import public_config
from inferplane.plan.record import selection_record
from inferplane.plan.render import warning_text
from inferplane.plan.types import Component, Plan
from inferplane.plugins.options import is_secret_option
from inferplane.plugins.records import Problem

if TYPE_CHECKING:
    from inferplane.config import Config
    from inferplane.plugins.discovery import Discovery

WORKER_START, WORKER_STOP = "inferplane_worker_start", "inferplane_worker_stop"


def validate(config: Config, discovery: Discovery) -> None:
    """Let every plugin look at the configuration, without its keys.

    An error finding raises InferplaneError, as does a change of the core when plugins are locked; a warning, and a hook
    that fails, become problems of the discovery.
    """
    platforms = [found.spec for found in discovery.platforms if found.spec is not None]
    secret = {option.name for spec in platforms for option in spec.options if is_secret_option(option)}
    data = public_config(config, secret)
    for answer in discovery.call_hook("inferplane_validate", config=data):
        for finding in answer.findings:
            message = f"{answer.owner}: {finding.subject}: {finding.message}"
            if finding.level == "error":
                raise InferplaneError(message, code="config.plugin", remedy=finding.remedy)
            if finding.level != "ok":
                discovery.problems.append(
                    Problem(level="warning", code="config.plugin", message=message, remedy=finding.remedy)
                )
        if answer.failure is not None:
            discovery.problems.append(Problem(level="warning", code="hook.failed", message=answer.describe()))
    discovery.raise_errors()


def tell_selection(plan: Plan, discovery: Discovery) -> Plan:
    """Give the record to every plugin that wants it; the Plan, with a warning for each hook that failed, and for each
    plugin that changed the core meanwhile.

    Raises InferplaneError when plugins are locked and one changed the core, before or while it was told.
    """
    discovery.raise_errors()
    known = len(discovery.problems)
    record = selection_record(plan)
    answers = discovery.call_hook("inferplane_selection", record=record)
    discovery.raise_errors()
    failures = [answer.describe() for answer in answers if answer.failure is not None]
    failures += map(warning_text, discovery.problems[known:])
    failed = {answer.plugin.distribution for answer in answers if answer.failure is not None}
    hooks = tuple(component for component in plan.hooks if component.distribution not in failed)
    warnings = tuple(dict.fromkeys([*plan.warnings, *failures]))
    return msgspec.structs.replace(plan, hooks=hooks, warnings=warnings) if failures else plan


def worker_components(discovery: Discovery) -> tuple[Component, ...]:
    """The plugins that an engine process must call when it starts and stops."""
    return tuple(
        Component(id=found.spec.name, load=found.spec.load, distribution=found.distribution, version=found.version)
        for found in discovery.hook_plugins
        if found.spec.hooks & {WORKER_START, WORKER_STOP}
    )
