"""How key-value memory is laid out: descriptors and views; knows nothing about who owns a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    import torch

AttentionKind = Literal["full", "sliding", "chunked", "latent", "state", "cross", "encoder"]

NULL_PAGE = 0
"""The page that padded rows and freed sliding-window entries point at. It always holds zeros: a padded token has slot
-1 and is not written, and what a warm-up step writes to it is cleared before the first request."""


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The order of the dimensions inside one page of one layer.

    order "thd" is [token, kv_head, head_size], "htd" is [kv_head, token, head_size]. Pages are separated by a stride
    that may be larger than the product of these (all layers of a group live in one page).
    """

    order: Literal["thd", "htd"] = "thd"
    content: Literal["k_v_planes", "latent", "state"] = "k_v_planes"


class KVGroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one page table. Bytes of a page are the same in every group; tokens per page differ."""

    index: int
    kind: AttentionKind
    layers: tuple[int, ...]
    """Model layer indices, in the order in which they lie in a page."""
    tokens_per_page: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: str
    """Of the cached keys and values: "float32", "bfloat16", "float16"."""
    window: int | None = None
    """Tokens that a query sees, itself included (kind "sliding" only)."""
    layout: KVLayout = KVLayout()


class KVGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """The one pool: equal-byte pages, and the groups that use them."""

    page_bytes: int
    groups: tuple[KVGroupSpec, ...]
    block_size: int
    """Tokens per hash block: divides every group's tokens_per_page."""


class KVView(NamedTuple):
    """One layer's cached keys and values, views into the pool that core allocated.

    For layout "thd", `k` and `v` are [num_pages, tokens_per_page, num_kv_heads, head_size]; for "htd",
    [num_pages, num_kv_heads, tokens_per_page, head_size]. Contiguous within a page; the stride between pages is
    larger. Plugins change only the slots of the step's slot mapping; a device that cannot write single slots writes
    the others of the same page back as they were. No two rows of a step write to the same page.
    """

    k: torch.Tensor
    v: torch.Tensor
    layout: KVLayout
    tokens_per_page: int
