"""Reads a config's rotary-embedding parameters in every spelling; computes nothing and imports no torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from inferplane_api.errors import InvalidValue

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


class RopeParameters(NamedTuple):
    """What `RotaryEmbedding` computes from. Names are those of Hugging Face's `rope_parameters`."""

    rope_type: str
    dim: int
    """Elements of a head that are rotated, even."""
    theta: float
    max_position: int
    """The config's max_position_embeddings."""
    factor: float = 1.0
    original_max_position: int = 0
    """Longest context before scaling (yarn, llama3)."""
    attention_factor: float | None = None
    """Multiplies cosine and sine (yarn); None: from factor and mscale."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    @property
    def extended_max_position(self) -> int:
        """The longest context that the scaling gives: for types whose max_position_embeddings does not count it."""
        if self.rope_type in ("linear", "dynamic"):
            return int(self.max_position * self.factor)
        if self.rope_type == "yarn":
            return max(self.max_position, int(self.original_max_position * self.factor))
        return self.max_position


def rope_parameters(
    config: dict[str, Any],
    *,
    head_size: int,
    max_position: int,
    layer_type: str | None = None,
    default_theta: float = 10_000.0,
) -> RopeParameters:
    """The parameters for layers of a type ("full_attention", "sliding_attention"), or of all layers.

    Reads `rope_parameters` (transformers 5; flat, or one dictionary per layer type), `rope_scaling` (before; `type` or
    `rope_type`), and `rope_theta` and `partial_rotary_factor` beside them. `rope_scaling` wins, as in transformers.
    Raises InvalidValue naming the field.
    """
    field, raw = _select(config, layer_type)
    rope_type = raw.get("rope_type") or raw.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        raise InvalidValue(
            f"{field}.rope_type", rope_type, f"is not one of the supported types: {', '.join(ROPE_TYPES)}"
        )

    def number(name: str, default: float | None, *, above: float = 0.0) -> float:
        value = raw.get(name)
        value = default if value is None else value
        if value is None:
            raise InvalidValue(f"{field}.{name}", None, f"is missing and the type {rope_type!r} needs it")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= above:
            raise InvalidValue(f"{field}.{name}", value, f"must be a number above {above:g}")
        return float(value)

    original = config.get("original_max_position_embeddings") or raw.get("original_max_position_embeddings")
    original = int(original or max_position)
    partial = raw.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    partial = 1.0 if partial is None else float(partial)
    needs_factor = rope_type in ("linear", "dynamic", "llama3")
    attention_factor = raw.get("attention_factor")
    parameters = RopeParameters(
        rope_type=rope_type,
        dim=int(head_size * partial),
        theta=number("rope_theta", config.get("rope_theta") or default_theta),
        max_position=max_position,
        factor=1.0 if rope_type == "default" else number("factor", None if needs_factor else max_position / original),
        original_max_position=original,
        attention_factor=None if attention_factor is None else float(attention_factor),
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        mscale=float(raw.get("mscale") or 0.0),
        mscale_all_dim=float(raw.get("mscale_all_dim") or 0.0),
        truncate=bool(raw.get("truncate", True)),
        low_freq_factor=number("low_freq_factor", None if rope_type == "llama3" else 1.0),
        high_freq_factor=number("high_freq_factor", None if rope_type == "llama3" else 4.0),
    )
    if parameters.dim % 2 or not 0 < parameters.dim <= head_size:
        raise InvalidValue(
            f"{field}.partial_rotary_factor",
            partial,
            f"rotates {parameters.dim} of {head_size} elements, not an even number",
        )
    return parameters


def _select(config: dict[str, Any], layer_type: str | None) -> tuple[str, dict[str, Any]]:
    """The dictionary that counts, and what to call it in an error."""
    scaling, parameters = config.get("rope_scaling"), config.get("rope_parameters")
    for field, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if value is not None and not isinstance(value, dict):
            raise InvalidValue(field, value, "must be an object")
    if scaling:
        return "rope_scaling", scaling
    parameters = parameters or {}
    nested = parameters.get(layer_type)
    if layer_type is not None and isinstance(nested, dict):
        return f"rope_parameters.{layer_type}", nested
    return "rope_parameters", parameters
