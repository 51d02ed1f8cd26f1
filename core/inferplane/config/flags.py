"""Command-line flags generated from the configuration's fields, one each; there is no second list."""

from __future__ import annotations

import argparse
import json
import os
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import PydanticUndefined

from inferplane.config.schema import Config
from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

KEY_VARIABLE = "INFERPLANE_API_KEY"
"""A key that a request must carry, for those who give none with --api-key."""

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


def collect_config(arguments: argparse.Namespace) -> Config:
    """The configuration from parsed flags over the YAML file over the defaults. Raises InvalidValue."""
    said = {} if arguments.config is None else _read_yaml(arguments.config)
    known = _field_names()
    flags = {name: value for name, value in vars(arguments).items() if name in known}
    if "api_key" not in flags and "api_key" not in said and os.environ.get(KEY_VARIABLE):
        # Not on the command line, where every user of the host can read it.
        said["api_key"] = (os.environ[KEY_VARIABLE],)
    origins = {name: f"file {arguments.config}" for name in said}
    origins |= {name: f"flag --{name.replace('_', '-')}" for name in flags}
    return Config.from_flat({**said, **flags}, origins)


def _field_names() -> set[str]:
    return {
        name
        for info in Config.model_fields.values()
        for name in info.annotation.model_fields  # type: ignore[union-attr]
    }


def _add_flag(group: Any, name: str, field: FieldInfo) -> None:
    flag = "--" + name.replace("_", "-")
    names = [SHORT[name], flag] if name in SHORT else [flag]
    # SUPPRESS: only what the user gave is in the namespace, so that a file's value is not overwritten by a default.
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(field)}
    kind = _without_none(field.annotation)
    origin = typing.get_origin(kind)
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif origin is Literal:
        options["choices"] = typing.get_args(kind)
    elif origin is tuple:
        options.update(nargs="+", metavar="VALUE")
    elif origin is dict and typing.get_args(kind)[1] is str:
        options.update(action=_Pair, metavar="NAME=VALUE")
    elif origin is dict:
        options.update(type=_json_object, metavar="JSON")
    else:
        options["metavar"] = _metavar(kind)
    group.add_argument(*names, **options)


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = [part for part in typing.get_args(annotation) if part is not type(None)]
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%").replace("`", "")
    default = field.default
    if default is PydanticUndefined or default is None or default == () or default == {}:
        return text
    return f"{text} [{default}]"


def _metavar(kind: Any) -> str:
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


class _Pair(argparse.Action):
    """NAME=VALUE, repeatable."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, sign, value = str(values).partition("=")
        if not sign or not name:
            parser.error(f"{option_string} takes NAME=VALUE, not {values!r}")
        pairs = dict(getattr(namespace, self.dest, {}))
        pairs[name] = value
        setattr(namespace, self.dest, pairs)


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
