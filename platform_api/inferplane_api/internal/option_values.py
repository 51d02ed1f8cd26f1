"""The values of a platform's options that hold for a process which nobody gave any: the variable's or the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inferplane_api.spec import Option, PlatformSpec

Value = str | int | float | bool

TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def option_values(spec: PlatformSpec, environ: Mapping[str, str]) -> dict[str, Value]:
    """Every declared option that has a value. Raises ValueError for a variable with a text of another type."""
    values = {}
    for option in spec.options:
        text = environ.get(option.variable) if option.variable is not None else None
        value = option.default if text is None else parse(option, text)
        if value is not None:
            values[option.name] = value
    return values


def parse(option: Option, text: str) -> Value:
    """The text as a value of the option's type. Raises ValueError."""
    if option.type == "int":
        return int(text)
    if option.type == "float":
        return float(text)
    if option.type == "str":
        return text
    lower = text.strip().lower()
    if lower not in (*TRUE, *FALSE):
        raise ValueError(f"{option.name}={text!r} is not of type bool")
    return lower in TRUE
