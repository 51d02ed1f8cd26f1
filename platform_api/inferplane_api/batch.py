"""The tensors of one step as a model and an attention backend see them; knows nothing about requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from inferplane_api.kv import KVView


class AttentionBatch(NamedTuple):
    """One KV group's view of a step, given to `PagedAttention.plan`. T tokens, R requests (rows), P page-table entries.

    Device tensors have the step's real sizes; on a platform that declares buckets, and in a captured graph, those of
    the bucket. Padding comes last, in the host's arrays too. A padded row has no token (query_start repeats its last
    value), seq_len 0 and a page table of null pages. A padded token belongs to no row, has id 0, position 0 and slot
    -1; what is computed for it is ignored. P is then `AttentionContext.max_pages`. Models are asked for the logits of a
    batch bucket of rows likewise; sampling sees the real rows only.
    """

    query_start: torch.Tensor
    """[R + 1] int32: row r's tokens are [query_start[r], query_start[r + 1]) of the T tokens."""
    seq_lens: torch.Tensor
    """[R] int32: tokens in the cache after this step, those of the step included."""
    page_table: torch.Tensor
    """[R, P] int32."""
    slot_mapping: torch.Tensor
    """[T] int64: page * tokens_per_page + offset, where each token's key and value are written; -1 for a padded token,
    which is not written."""
    query_start_host: np.ndarray
    """[R + 1] int32, the same on the host."""
    seq_lens_host: np.ndarray
    """[R] int32."""
    num_decode_rows: int
    """Rows 0 … n-1 have exactly one token."""
    max_query_len: int
    max_seq_len: int


class StepBatch(NamedTuple):
    """The arguments of a model's forward pass."""

    input_ids: torch.Tensor
    """[T] int64."""
    positions: torch.Tensor
    """[T] int64, or [3, T] for sectioned rotary embeddings."""
    kv: Sequence[KVView]
    """Per model layer."""
    input_embeds: torch.Tensor | None = None
    """[T, hidden]; used where embeds_mask is True."""
    embeds_mask: torch.Tensor | None = None
    """[T] bool."""
    adapter_slots: torch.Tensor | None = None
    """[T] int32."""
    intermediate: torch.Tensor | None = None
    """[T, hidden] from the preceding pipeline stage."""
    query_start_host: np.ndarray | None = None
    """[R + 1] int64 on the host, of the real rows: for layers of kind "encoder", which have no backend. Tokens
    behind the last row are padding. None in a captured step, which models with such layers never have."""
