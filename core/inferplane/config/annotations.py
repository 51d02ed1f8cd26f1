"""The fields of the configuration as a flat list, and what their annotations mean for those who read them as text."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

from inferplane.config.schema import Config

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def settings() -> dict[str, FieldInfo]:
    """Field name to field, over all sections."""
    return {
        name: field
        for info in Config.model_fields.values()
        for name, field in info.annotation.model_fields.items()  # type: ignore[union-attr]
    }


def without_none(annotation: Any) -> Any:
    """The type of a value that is given."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = [part for part in typing.get_args(annotation) if part is not type(None)]
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
