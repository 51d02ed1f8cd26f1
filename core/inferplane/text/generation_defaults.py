"""What sampling uses where a request says nothing: the user's override, the model's file, the API. Samples nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from inferplane.errors import InvalidValue
from inferplane_api.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inferplane_api.checkpoint import CheckpointCard

Api = Literal["completions", "chat", "offline"]

_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""What is taken from a generation_config.json, and what requests call it."""

_MAX_TOKENS: dict[Api, int | None] = {"completions": 16, "chat": None, "offline": 16}
"""OpenAI's defaults; None is the rest of the context."""


class SamplingDefaults(NamedTuple):
    """The layers under a request: override over file. (The API's own defaults are those of SamplingParams.)"""

    from_file: dict[str, Any]
    from_override: dict[str, Any]
    eos_token_ids: tuple[int, ...]
    """All tokens that end an answer, whatever the layers say about sampling."""
    source: str
    """Where the file layer comes from, for a person."""

    @classmethod
    def from_card(
        cls, card: CheckpointCard, generation_config: str = "auto", override: Mapping[str, Any] | None = None
    ) -> SamplingDefaults:
        """generation_config: "auto" (the model's file), "vllm" (no file), or a folder with a generation_config.json.

        Raises InvalidValue naming the setting for a folder without one, or a value that cannot be used.
        """
        override = dict(override or {})
        if generation_config == "auto":
            file, source = card.generation_config, "the model's generation_config.json"
        elif generation_config == "vllm":
            file, source = {}, "no file (generation_config=vllm)"
        else:
            file, source = _read(generation_config), generation_config
        eos = _ids(card.config.get("eos_token_id")) + _ids(card.generation_config.get("eos_token_id"))
        eos += _ids(file.get("eos_token_id")) + _ids(override.get("eos_token_id"))
        layers = cls(_sampling(file), _sampling(override), tuple(dict.fromkeys(eos)), source)
        layers._check(override)
        return layers

    def apply(self, fields: Mapping[str, Any], api: Api | None = None) -> dict[str, Any]:
        """Arguments of SamplingParams: request over override over file over the API's default.

        `fields`: what the request says, under SamplingParams' names; None means that it does not say. Without an `api`,
        the default of max_tokens is left to the caller.
        """
        defaults: dict[str, Any] = {} if api is None else {"max_tokens": _MAX_TOKENS[api]}
        given = {name: value for name, value in fields.items() if value is not None}
        return {**defaults, **self.from_file, **self.from_override, **given}

    def describe(self) -> str:
        """One line for the log."""
        merged = {**self.from_file, **self.from_override}
        values = ", ".join(f"{name}={value}" for name, value in merged.items()) or "the API's"
        overridden = f", overridden: {', '.join(self.from_override)}" if self.from_override else ""
        return f"sampling defaults from {self.source}{overridden}: {values}; end tokens {list(self.eos_token_ids)}"

    def _check(self, override: dict[str, Any]) -> None:
        known = {*_FIELDS, *_FIELDS.values(), "eos_token_id"}
        if unknown := sorted(override.keys() - known):
            raise InvalidValue(
                "override_generation_config", unknown, "has no effect", remedy=f"known: {', '.join(sorted(known))}"
            )
        for setting, layer in (
            ("generation_config", self.from_file),
            ("override_generation_config", self.from_override),
        ):
            try:
                SamplingParams(**layer)
            except InvalidValue as error:
                raise InvalidValue(
                    setting,
                    {error.field: error.value},
                    error.problem,
                    remedy="start with --generation-config vllm" if setting == "generation_config" else "",
                ) from error
            except TypeError as error:
                raise InvalidValue(setting, layer, f"a value is of the wrong type: {error}") from error


def _sampling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values that sampling knows. `max_tokens` is taken too: users write it in overrides."""
    names = {**_FIELDS, "max_tokens": "max_tokens"}
    return {names[key]: value for key, value in config.items() if key in names and value is not None}


def _ids(value: object) -> list[int]:
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [value]
    return [v for v in value if isinstance(v, int)] if isinstance(value, (list, tuple)) else []


def _read(folder: str) -> dict[str, Any]:
    path = Path(folder).expanduser()
    file = path / "generation_config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue(
            "generation_config",
            folder,
            f"cannot read {file}: {error.strerror or error}",
            remedy="give auto, vllm, or a folder that holds a generation_config.json",
        ) from error
    except ValueError as error:
        raise InvalidValue("generation_config", folder, f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidValue("generation_config", folder, f"{file} does not hold a JSON object")
    return config
