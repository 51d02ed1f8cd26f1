"""A platform's own options: from --platform-option, then its environment variable, then the default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from inferplane.config.secrets import HIDDEN, is_secret
from inferplane.errors import InvalidValue
from inferplane_api.internal.option_values import Value, parse
from inferplane_api.spec import Option, PlatformSpec

FIELD = "platform_option"


class ResolvedOption(NamedTuple):
    """One declared option with the value that holds and where it comes from."""

    name: str
    value: Value | None
    """None: neither given nor with a default."""
    variable: str = ""
    """The variable that gave the value, "" when none did."""
    given: bool = False
    """True when --platform-option gave it."""
    secret: bool = False
    """Named like a secret, itself or its variable."""

    @property
    def shown(self) -> str:
        """The value for a record, without a secret's."""
        if self.value is None:
            return "none"
        return HIDDEN if self.secret else str(self.value)


def resolve_options(
    spec: PlatformSpec, given: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[ResolvedOption, ...]:
    """Every declared option, in the order of the declaration; a given name that is not declared is passed over.

    Raises InvalidValue for a value of the wrong type.
    """
    return tuple(_resolve(option, given, environ) for option in spec.options)


def platform_options(spec: PlatformSpec, given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Value]:
    """Every declared option that has a value. Raises InvalidValue for an unknown name or a value of the wrong type."""
    require_declared(spec, given)
    return option_values(resolve_options(spec, given, environ))


def require_declared(spec: PlatformSpec, given: Mapping[str, str]) -> None:
    """Raise InvalidValue, with a suggestion, for a given name that the platform does not declare."""
    declared = {option.name: option for option in spec.options}
    for name, text in given.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            have = ", ".join(declared) or "none"
            remedy = f"did you mean {near[0]!r}?" if near else f"its options: {have}"
            shown = HIDDEN if is_secret(name) else text
            raise InvalidValue(FIELD, f"{name}={shown}", f"platform {spec.name!r} has no such option", remedy=remedy)


def option_values(resolved: tuple[ResolvedOption, ...]) -> dict[str, Value]:
    """Name to value, of those that have one."""
    return {option.name: option.value for option in resolved if option.value is not None}


def is_secret_option(option: Option) -> bool:
    """True when the option, or its variable, is named like a secret."""
    return is_secret(option.name) or (option.variable is not None and is_secret(option.variable))


def _resolve(option: Option, given: Mapping[str, str], environ: Mapping[str, str]) -> ResolvedOption:
    secret = is_secret_option(option)
    if option.name in given:
        return ResolvedOption(option.name, _parse(option, given[option.name], FIELD), given=True, secret=secret)
    if option.variable is not None and option.variable in environ:
        value = _parse(option, environ[option.variable], option.variable)
        return ResolvedOption(option.name, value, variable=option.variable, secret=secret)
    return ResolvedOption(option.name, option.default, secret=secret)


def _parse(option: Option, text: str, field: str) -> Value:
    try:
        return parse(option, text)
    except ValueError as error:
        value = HIDDEN if is_secret_option(option) else text
        shown = f"{option.name}={value}" if field == FIELD else value
        # The cause holds the value.
        cause = None if is_secret_option(option) else error
        raise InvalidValue(field, shown, f"not of type {option.type}", remedy=option.doc) from cause
