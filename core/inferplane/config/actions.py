"""How a flag takes a mapping: NAME=VALUE pairs and JSON objects, in pieces or whole. Knows no setting."""

from __future__ import annotations

import argparse
import json
from typing import Any


class Pair(argparse.Action):
    """NAME=VALUE, repeatable."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Of argparse."""
        name, sign, value = str(values).partition("=")
        if not sign or not name:
            parser.error(f"{option_string} takes NAME=VALUE, not {values!r}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: value})

    @staticmethod
    def spell(path: list[str], value: str) -> str:
        """The value of the flag that `--flag.path value` stands for."""
        return f"{'.'.join(path)}={value}"


class JsonObject(argparse.Action):
    """A JSON object; given again, it is merged into what was given before."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Of argparse."""
        try:
            value = json.loads(values)
        except json.JSONDecodeError as error:
            parser.error(f"{option_string}: {values!r} is not JSON: {error}")
        if not isinstance(value, dict):
            parser.error(f"{option_string}: {values!r} is not a JSON object")
        setattr(namespace, self.dest, _merged(getattr(namespace, self.dest, {}), value))

    @staticmethod
    def spell(path: list[str], value: str) -> str:
        """The value of the flag that `--flag.path value` stands for; what is no JSON is text."""
        try:
            found = json.loads(value)
        except json.JSONDecodeError:
            found = value
        for key in reversed(path):
            found = {key: found}
        return json.dumps(found)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(old[key], new[key]) for key in old.keys() & new.keys() if _are_objects(old[key], new[key])}
    return {**old, **new, **both}


def _are_objects(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)
