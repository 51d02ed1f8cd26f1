"""Settings from environment variables: INFERPLANE_<FIELD> for every field, and a few of vLLM's names for it."""

from __future__ import annotations

import json
import os
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BeforeValidator

from inferplane.config.annotations import settings, without_none
from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PREFIX = "INFERPLANE_"

UNREAD = ("plugins",)
"""INFERPLANE_PLUGINS is read where plugins are listed, so that `LLM` and `inferplane plugins` hold to it too."""

VLLM_VARIABLES = {
    "VLLM_API_KEY": "api_key",
    "VLLM_LOGGING_LEVEL": "log_level",
    "VLLM_LOG_STATS_INTERVAL": "log_stats_interval",
    "VLLM_SERVER_DEV_MODE": "server_dev_mode",
    "VLLM_USE_MODELSCOPE": "use_modelscope",
}
"""Read where neither a flag, nor our variable, nor the file says the same. Each is announced by its origin."""


class Said(NamedTuple):
    """A value, and the variable that said it."""

    value: Any
    variable: str


def variable_of(name: str) -> str:
    """The variable of a field."""
    return PREFIX + name.upper()


def read_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Said]:
    """Field to what its variable says; an empty variable says nothing. Raises InvalidValue."""
    return {
        name: Said(_parse(variable_of(name), environ[variable_of(name)], field), variable_of(name))
        for name, field in settings().items()
        if name not in UNREAD and environ.get(variable_of(name))
    }


def read_vllm_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Said]:
    """The same of vLLM's variables. Raises InvalidValue."""
    fields = settings()
    return {
        name: Said(_parse(variable, environ[variable], fields[name]), variable)
        for variable, name in VLLM_VARIABLES.items()
        if environ.get(variable)
    }


def _parse(variable: str, text: str, field: FieldInfo) -> Any:
    kind = without_none(field.annotation)
    origin = typing.get_origin(kind)
    if origin is Literal:
        return next((value for value in typing.get_args(kind) if str(value).lower() == text.lower()), text)
    if origin is dict:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidValue(variable, text, f"is not JSON: {error}") from error
    if origin is tuple and not any(isinstance(part, BeforeValidator) for part in field.metadata):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
