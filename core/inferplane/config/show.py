"""The configuration as text: what differs from the defaults, and all of it as a YAML file. Shows no secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inferplane.config.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from inferplane.config.schema import Config

SECRETS = ("api_key",)
"""Fields that are secret as a whole; of a mapping, single keys may be."""


def said_line(config: Config) -> str:
    """ "max_model_len=4096 (flag --max-model-len), ...": what was said, and where; empty when nothing was."""
    return ", ".join(f"{name}={_shown(name, value)} ({config.origin(name)})" for name, value in config.said().items())


def as_yaml(config: Config) -> str:
    """A file for --config: every setting, those at their default as comments. Keys are left out."""
    lines = []
    said = config.said()
    for section, fields in config.model_dump(mode="json").items():
        lines.append(f"\n# --- {section}")
        for name, value in fields.items():
            key = name.replace("_", "-")
            # JSON is YAML.
            line = f"{key}: {json.dumps(_public(value))}"
            if name not in said:
                lines.append(f"# {line}")
            elif name in SECRETS:
                lines.append(f"# {key}: {len(value)} not shown  # {config.origin(name)}")
            else:
                lines.append(f"{line}  # {config.origin(name)}")
    return "\n".join(lines).lstrip() + "\n"


def _shown(name: str, value: Any) -> str:
    if name in SECRETS:
        return f"<{len(value)} not shown>"
    return json.dumps(_public(value)) if isinstance(value, (tuple, dict)) else str(value)


def _public(value: Any) -> Any:
    """A plugin's option may be a secret: its name tells."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(str(key)) else each for key, each in value.items()}
    return value
