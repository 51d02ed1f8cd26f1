"""A platform's own options: from --platform-option, then its environment variable, then the default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from inferplane.errors import InvalidValue
from inferplane_api.spec import Option, PlatformSpec

FIELD = "platform_option"

Value = str | int | float | bool

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def platform_options(spec: PlatformSpec, given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Value]:
    """Every declared option that has a value. Raises InvalidValue for an unknown name or a value of the wrong type."""
    declared = {option.name: option for option in spec.options}
    for name, text in given.items():
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            have = ", ".join(declared) or "none"
            remedy = f"did you mean {near[0]!r}?" if near else f"its options: {have}"
            raise InvalidValue(FIELD, f"{name}={text}", f"platform {spec.name!r} has no such option", remedy=remedy)
    values: dict[str, Value] = {}
    for option in spec.options:
        value = _value(option, given, environ)
        if value is not None:
            values[option.name] = value
    return values


def _value(option: Option, given: Mapping[str, str], environ: Mapping[str, str]) -> Value | None:
    if option.name in given:
        return _parse(option, given[option.name], FIELD)
    if option.variable is not None and option.variable in environ:
        return _parse(option, environ[option.variable], option.variable)
    return option.default


def _parse(option: Option, text: str, field: str) -> Value:
    shown = f"{option.name}={text}" if field == FIELD else text
    try:
        if option.type == "bool":
            return _boolean(text)
        if option.type == "int":
            return int(text)
        return float(text) if option.type == "float" else text
    except ValueError as error:
        raise InvalidValue(field, shown, f"not of type {option.type}", remedy=option.doc) from error


def _boolean(text: str) -> bool:
    lower = text.strip().lower()
    if lower not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return lower in _TRUE
