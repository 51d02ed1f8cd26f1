"""The reference ops as a provider: every schema, in plain torch; knows no device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplane_api.ops import SCHEMAS
from inferplane_api.reference import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ReferenceOps:
    """Implements `inferplane_api.ops.OpProvider`."""

    def ops(self) -> Mapping[str, Callable[..., Any]]:
        """ "name@version" to the reference, for every schema."""
        return {schema.id: getattr(ops, name) for name, schema in SCHEMAS.items()}


PROVIDER = ReferenceOps()
