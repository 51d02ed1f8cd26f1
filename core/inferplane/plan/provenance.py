"""Where the value of every setting comes from, gathered once when a plan is made. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from inferplane.config.secrets import HIDDEN, is_secret
from inferplane.plan.types import Decision, Setting

if TYPE_CHECKING:
    from inferplane.config import Config
    from inferplane.plan.settings import Settings
    from inferplane.plugins.options import ResolvedOption

SECTIONS = ("model", "platform", "cache", "scheduler")
"""What matters to an engine; the server's settings are not a part of a selection."""

_SUBJECTS = {
    "model.dtype": "dtype",
    "cache.kv_cache_dtype": "kv dtype",
    "cache.block_size": "pages",
    "platform.platform": "platform",
}
"""Settings whose value in effect is the record of a decision; others are "config PATH"."""

_AUTOMATIC = "automatic"


OPTIONS = "platform.platform_option"


def effective_settings(
    config: Config,
    settings: Settings,
    decisions: Iterable[Decision],
    block_size: int,
    options: Iterable[ResolvedOption] = (),
) -> tuple[Setting, ...]:
    """Every setting of an engine with the value that holds: the user's, a plugin's, the default or what was decided.

    The platform's own options are one setting each, "platform.platform_option.NAME"; a secret's value is not shown.
    """
    by_subject = {decision.subject: decision for decision in decisions}
    general = tuple(
        _setting(f"{section}.{name}", settings, by_subject, block_size)
        for section in SECTIONS
        for name in type(getattr(config, section)).model_fields
    )
    return (*general, *(_option(option, settings) for option in options))


def public_config(config: Config, secret_options: Iterable[str] = ()) -> dict[str, Any]:
    """The configuration for an endpoint or a plugin: JSON types, no key, and no value of a secret option.

    An option is secret by its own name or as one of `secret_options`, those whose variable is named so.
    """
    data: dict[str, Any] = config.model_dump(mode="json")
    for section in data.values():
        for name in [name for name in section if is_secret(name)]:
            del section[name]
    given = data["platform"]["platform_option"]
    for name in given:
        if is_secret(name) or name in secret_options:
            given[name] = HIDDEN
    return data


def _option(option: ResolvedOption, settings: Settings) -> Setting:
    source = f"variable {option.variable}" if option.variable else "default"
    if option.given:
        source = settings.origin(OPTIONS)
    return Setting(path=f"{OPTIONS}.{option.name}", value=option.shown, source=source)


def _setting(path: str, settings: Settings, by_subject: Mapping[str, Decision], block_size: int) -> Setting:
    decision = by_subject.get(_SUBJECTS.get(path, f"config {path}"))
    origin = settings.origin(path)
    if path == OPTIONS:  # names only: each has a setting of its own, and a value may be a secret
        return Setting(path=path, value=", ".join(settings.value(path)) or "none", source=origin)
    if decision is None:
        return Setting(path=path, value=_text(settings.value(path)), source=origin)
    value = str(block_size) if path == "cache.block_size" else decision.chosen
    if origin != "default":
        return Setting(path=path, value=value, source=origin)
    undecided = decision.source == _AUTOMATIC and value == _text(settings.value(path))
    return Setting(path=path, value=value, source="default" if undecided else decision.source)


def _text(value: Any) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
