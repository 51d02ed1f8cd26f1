"""Command-line flags generated from the configuration's fields, one each; there is no second list."""

from __future__ import annotations

import argparse
import os
import typing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import PydanticUndefined

from inferplane.config.actions import JsonObject, Pair
from inferplane.config.annotations import settings, without_none
from inferplane.config.environment import read_environment, read_vllm_environment, variable_of
from inferplane.config.parser import Parser
from inferplane.config.schema import Config
from inferplane.config.value_words import own_value
from inferplane.config.vllm_flags import foreign
from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

SHORT = {"quantization": "-q"}


def add_config_flags(parser: argparse.ArgumentParser, *, sections: tuple[str, ...] | None = None) -> None:
    """Add `--config` and one flag for every field of the sections (all by default)."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with flag names as keys; flags win")
    for section, info in Config.model_fields.items():
        if sections is not None and section not in sections:
            continue
        kind: Any = info.annotation
        group = parser.add_argument_group(section, description=(kind.__doc__ or "").strip())
        for name, field in kind.model_fields.items():
            _add_flag(group, name, field)
    if isinstance(parser, Parser):
        parser.grouped = True
        parser.foreign = foreign


def collect_config(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration: flags over INFERPLANE_ variables over the YAML file over vLLM's variables over defaults.

    Raises InvalidValue.
    """
    known = settings()
    vllm, ours = read_vllm_environment(environ), read_environment(environ)
    said = {name: item.value for name, item in vllm.items()}
    origins = {name: f"variable {item.variable}" for name, item in vllm.items()}
    if arguments.config is not None:
        file = _read_yaml(arguments.config)
        said |= file
        origins |= dict.fromkeys(file, f"file {arguments.config}")
    said |= {name: item.value for name, item in ours.items()}
    origins |= {name: f"variable {item.variable}" for name, item in ours.items()}
    flags = {name: value for name, value in vars(arguments).items() if name in known}
    origins |= {name: f"flag --{name.replace('_', '-')}" for name in flags}
    try:
        return Config.from_flat({**said, **flags}, origins)
    except InvalidValue as error:
        origin = origins.get(error.field.partition(".")[0], "")
        if not origin.startswith(("file", "variable")):
            raise
        remedy = "; ".join(part for part in (error.remedy, f"it comes from {origin}") if part)
        raise InvalidValue(error.field, error.value, error.problem, remedy=remedy) from error


def take_model(arguments: argparse.Namespace) -> None:
    """MODEL as the flag --model. Raises InvalidValue where both are given, or a flag of several values took it."""
    if arguments.model_position is not None:
        if getattr(arguments, "model", arguments.model_position) != arguments.model_position:
            problem = f"MODEL says {arguments.model_position!r}"
            raise InvalidValue("model", arguments.model, problem, remedy="give one of the two")
        arguments.model = arguments.model_position
    elif not hasattr(arguments, "model"):
        _refuse_swallowed_model(arguments)


def _refuse_swallowed_model(arguments: argparse.Namespace) -> None:
    """A flag of several values takes a MODEL that follows it for one more; the default must not be served then."""
    for name, value in vars(arguments).items():
        if isinstance(value, list) and len(value) > 1 and os.path.exists(value[-1]):
            flag = "--" + name.replace("_", "-")
            raise InvalidValue(
                name, value[-1], f"was taken as a value of {flag}, and it looks like a model", remedy="put MODEL first"
            )


def _add_flag(group: Any, name: str, field: FieldInfo) -> None:
    flag = "--" + name.replace("_", "-")
    names = [SHORT[name], flag] if name in SHORT else [flag]
    # SUPPRESS: only what the user gave is in the namespace, so that a file's value is not overwritten by a default.
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(name, field)}
    kind = without_none(field.annotation)
    origin = typing.get_origin(kind)
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif origin is Literal:
        options.update(choices=typing.get_args(kind), type=partial(own_value, name))
    elif origin is tuple:
        options.update(nargs="+", metavar="VALUE")
    elif origin is dict and typing.get_args(kind)[1] is str:
        options.update(action=Pair, metavar="NAME=VALUE")
    elif origin is dict:
        options.update(action=JsonObject, metavar="JSON")
    else:
        options["metavar"] = {int: "N", float: "X"}.get(kind, "TEXT")
    group.add_argument(*names, **options)


def _help(name: str, field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%").replace("`", "")
    default = field.default
    shown = "" if default is PydanticUndefined or default is None or default in ((), {}) else f" [{default}]"
    return f"{text}{shown} ({variable_of(name)})"


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue("config", str(path), f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())
        raise InvalidValue("config", str(path), f"is not YAML: {where}", remedy="see docs/configuration.md") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidValue("config", str(path), "must be a mapping of setting names to values")
    return {str(key).replace("-", "_"): value for key, value in data.items()}
