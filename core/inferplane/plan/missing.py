"""Says of a format or a model that nobody brings which installed plugins were left out. Knows no plugin's contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inferplane.plugins.records import LeftOut

_BROUGHT_BY = {
    "checkpoint.unknown_format": "quantization",
    "checkpoint.unknown_quantization": "quantization",
    "format.unknown": "quantization",
    "model.unknown": "models",
    "model.unsupported": "models",
}
"""The kind of plugin that would have prevented an error."""


def with_left_out(error: InferplaneError, left_out: Iterable[LeftOut]) -> InferplaneError:
    """The error, or one that names what is installed and was left out: its remedy is a setting, not an installation."""
    kind = _BROUGHT_BY.get(error.code)
    candidates = [item for item in left_out if kind is not None and item.names_of(kind)]
    if not candidates:
        return error
    told = "; ".join(f"{', '.join(item.names_of(kind or ''))} is {item.describe()}" for item in candidates)
    remedy = "; ".join(dict.fromkeys(item.remedy for item in candidates))
    return InferplaneError(f"{error.message}; {told}", code=error.code, remedy=remedy)
