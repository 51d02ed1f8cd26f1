"""A layer's cache as a table with a row per token slot, for gathers and copies of rows; knows the layout "thd"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from inferplane_api.errors import Unsupported

if TYPE_CHECKING:
    from inferplane_api.kv import KVView


class TokenRows(Protocol):
    """Rows of num_kv_heads * head_size elements. A slot is page * tokens_per_page + offset."""

    key: int
    """Views with equal keys turn slots into the same index."""

    def index(self, slots: torch.Tensor) -> torch.Tensor:
        """Where slots [n] int64 are, [n]; valid for every view with the same key."""

    def write(self, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor) -> None:
        """k and v [n, num_kv_heads, head_size] to index [n], cast to the cache's type."""

    def gather(self, index: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at index [n], both [n, num_kv_heads * head_size]."""


class StridedRows:
    """Pages that are a whole number of rows apart: one flat table, in which other layers' rows lie between a page's."""

    def __init__(self, kv: KVView) -> None:
        num_pages, tokens, heads, size = kv.k.shape
        width = heads * size
        self.key = kv.k.stride(0) // width
        self._tokens = tokens
        shape = ((num_pages - 1) * self.key + tokens, width)
        self._k, self._v = (plane.as_strided(shape, (width, 1), plane.storage_offset()) for plane in (kv.k, kv.v))

    def index(self, slots: torch.Tensor) -> torch.Tensor:
        """Skips the rows between pages."""
        return slots + torch.div(slots, self._tokens, rounding_mode="floor") * (self.key - self._tokens)

    def write(self, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor) -> None:
        """A row copy a token."""
        self._k.index_copy_(0, index, k.flatten(1).to(self._k.dtype))
        self._v.index_copy_(0, index, v.flatten(1).to(self._v.dtype))

    def gather(self, index: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """A row copy a token."""
        return self._k.index_select(0, index).to(dtype), self._v.index_select(0, index).to(dtype)


class PagedRows:
    """Pages at any distance, as groups with different head sizes have them: slots are split at every access."""

    def __init__(self, kv: KVView) -> None:
        self.key = 0
        self._kv = kv

    def index(self, slots: torch.Tensor) -> torch.Tensor:
        """The slots themselves."""
        return slots

    def write(self, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor) -> None:
        """By page and offset."""
        pages, offsets = self._split(index)
        self._kv.k[pages, offsets] = k.to(self._kv.k.dtype)
        self._kv.v[pages, offsets] = v.to(self._kv.v.dtype)

    def gather(self, index: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """By page and offset."""
        pages, offsets = self._split(index)
        return self._kv.k[pages, offsets].flatten(1).to(dtype), self._kv.v[pages, offsets].flatten(1).to(dtype)

    def _split(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self._kv.tokens_per_page
        return torch.div(index, tokens, rounding_mode="floor"), index % tokens


def token_rows(kv: KVView) -> TokenRows:
    """The fastest access that the view's strides allow. Raises Unsupported for a layout other than "thd"."""
    if kv.layout.order != "thd":
        raise Unsupported(f"cpu.sdpa reads layout 'thd', not {kv.layout.order!r}")
    _, _, heads, size = kv.k.shape
    width = heads * size
    regular = kv.k.stride()[1:] == kv.v.stride()[1:] == (width, size, 1)
    if regular and kv.k.stride(0) == kv.v.stride(0) and kv.k.stride(0) % width == 0:
        return StridedRows(kv)
    return PagedRows(kv)
