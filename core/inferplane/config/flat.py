"""From flat names to the sections of the configuration; turns pydantic's errors into ours."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from inferplane.config.value_words import own_value
from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from inferplane.config.schema import Config


def sections_of(config_class: type[Config]) -> dict[str, str]:
    """Field name to section name; names are unique over sections."""
    return {
        field: section
        for section, info in config_class.model_fields.items()
        for field in info.annotation.model_fields  # type: ignore[union-attr]
    }


def config_from_flat(config_class: type[Config], values: dict[str, Any]) -> Config:
    """See `Config.from_flat`."""
    owners = sections_of(config_class)
    nested: dict[str, dict[str, Any]] = {}
    for said, value in values.items():
        name = said if said in owners else _translated(said, value, values)
        if name not in owners:
            near = difflib.get_close_matches(name, owners, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else "see `inferplane serve --help`"
            raise InvalidValue(name, value, "is not a setting", remedy=remedy)
        nested.setdefault(owners[name], {})[name] = own_value(name, value)
    try:
        return config_class(**nested)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        raise InvalidValue(field, first["input"], first["msg"]) from error


def _translated(name: str, value: Any, values: dict[str, Any]) -> str:
    """Our name of vLLM's setting, or the name itself. Raises InvalidValue where the meaning is another."""
    from inferplane.config.vllm_flags import foreign_setting

    found = foreign_setting(name)
    if found is None:
        return name
    if found.ours is None:
        raise InvalidValue(name, value, "is a setting of vLLM's", remedy=found.advice)
    ours = found.ours.removeprefix("--").replace("-", "_")
    if ours in values:
        raise InvalidValue(name, value, f"is {ours}, which is given too", remedy="leave one of them out")
    return ours
