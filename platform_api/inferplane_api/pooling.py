"""How one request turns the hidden states of its prompt into a vector; knows the choices, not how they are computed."""

from __future__ import annotations

from typing import Literal

import msgspec

from inferplane_api.errors import InvalidValue

PoolingType = Literal["CLS", "LAST", "MEAN"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that is pooled samples nothing: it ends when its prompt is computed, with one float32 vector.

    Order of application: pooling over the positions of the prompt, `dimensions`, `normalize`. Raises InvalidValue on
    construction and on decoding.
    """

    pooling_type: PoolingType
    """The hidden state of the first position, that of the last one, or the mean over all positions."""
    normalize: bool = True
    """Divide by the Euclidean length (of at least 1e-12)."""
    dimensions: int | None = None
    """Keep the first so many elements (Matryoshka representation); None: all."""

    def __post_init__(self) -> None:
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidValue("dimensions", self.dimensions, "must be at least 1")

    @property
    def reads_cached_pages(self) -> bool:
        """True where positions that the prefix cache holds need not be computed again."""
        return self.pooling_type == "LAST"
