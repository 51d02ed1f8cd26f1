"""From a config.json to the ModelSpec that everything before the weights works with; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplane.models.registry import REGISTRY
from inferplane_api.errors import InferplaneError, InvalidValue

if TYPE_CHECKING:
    from inferplane_api.model import ModelSpec


def model_spec(config: dict[str, Any]) -> ModelSpec:
    """Describe the architecture of a config, with Hugging Face's defaults for absent fields.

    Raises InvalidValue naming a field that is missing or makes no sense, InferplaneError (`model.unsupported`) for a
    model type that the core does not have.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InvalidValue("model_type", model_type, "the model's config does not say what type of model it is")
    entry = REGISTRY.get(model_type)
    if entry is None:
        raise InferplaneError(
            f"model type {model_type!r} is not supported",
            code="model.unsupported",
            remedy=f"supported types: {', '.join(sorted(REGISTRY))}; a plugin can add others (group inferplane.models)",
        )
    return entry.describe(config)
