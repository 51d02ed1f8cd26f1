"""Paged attention for a chip that copies whole pages and has one program per number of tokens and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_api.errors import Unsupported
from inferplane_examplechip.chip import require_compiled
from inferplane_examplechip.descriptor import PAGE_SIZE

if TYPE_CHECKING:
    from inferplane_api.attention import AttentionContext, KVScales
    from inferplane_api.batch import AttentionBatch
    from inferplane_api.kv import KVView


class ExampleChipAttention:
    """Implements `inferplane_api.attention.PagedAttention` for kinds full and sliding, layout "htd".

    Shapes: T tokens, H heads, K key heads of size D, N pages that the step writes.
    """

    def __init__(self, context: AttentionContext) -> None:
        if context.softcap is not None:
            raise Unsupported("examplechip.paged has no softcap", remedy="choose another --attention-backend")
        self._window = context.group.window
        self._scale = context.scale

    def plan(self, batch: AttentionBatch) -> None:
        """Once a step: which pages are rewritten, and where in them each token goes."""
        require_compiled(len(batch.slot_mapping), len(batch.seq_lens))
        self._batch = batch
        self._written = (batch.slot_mapping >= 0).nonzero().flatten()  # padded tokens have slot -1
        slots = batch.slot_mapping[self._written]
        self._pages, nth = torch.unique(slots // PAGE_SIZE, return_inverse=True)
        self._targets = nth * PAGE_SIZE + slots % PAGE_SIZE

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        kv: KVView,
        out: torch.Tensor,
        *,
        lse: torch.Tensor | None = None,
        scales: KVScales | None = None,
    ) -> None:
        """Once a layer: all writes, then each row's attention. Tokens of no row (padding) get out 0."""
        if lse is not None or scales is not None:
            raise Unsupported("examplechip.paged gives no log-sum-exp and reads no quantized cache")
        require_compiled(len(q))
        if k is not None and v is not None:
            self._rewrite_pages(kv.k, k)
            self._rewrite_pages(kv.v, v)
        out.zero_()
        starts, lengths = self._batch.query_start_host.tolist(), self._batch.seq_lens_host.tolist()
        for row, length in enumerate(lengths):
            start, end = starts[row], starts[row + 1]
            if start < end:
                out[start:end] = self._attend(q[start:end], kv, self._batch.page_table[row], length)

    def _rewrite_pages(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        """No write into the middle of a page: read pages [N, K, page, D], put the step's tokens in, copy them back."""
        pages = cache[self._pages]
        tokens = pages.transpose(1, 2).flatten(0, 1)
        tokens = tokens.index_copy(0, self._targets, new[self._written].to(cache.dtype))
        cache[self._pages] = tokens.view(len(self._pages), PAGE_SIZE, *new.shape[1:]).transpose(1, 2)

    def _attend(self, q: torch.Tensor, kv: KVView, page_table: torch.Tensor, length: int) -> torch.Tensor:
        """q [Q, H, D], the last Q of a row's `length` tokens, gives [Q, H, D]."""
        num_queries, num_heads, _ = q.shape
        first = 0 if self._window is None else max(0, length - num_queries - self._window + 1)
        keys, values = (_gather(cache, page_table, first, length) for cache in (kv.k, kv.v))
        query_positions = torch.arange(length - num_queries, length)[:, None]
        positions = torch.arange(first, length)
        hidden = positions > query_positions
        if self._window is not None:
            hidden |= positions <= query_positions - self._window
        grouped = q.float().reshape(num_queries, keys.shape[0], num_heads // keys.shape[0], -1)
        scores = self._scale * torch.einsum("qkgd,knd->kgqn", grouped, keys)
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        return torch.einsum("kgqn,knd->qkgd", weights, values).flatten(1, 2).to(q.dtype)


def _gather(cache: torch.Tensor, page_table: torch.Tensor, first: int, length: int) -> torch.Tensor:
    """A row's tokens first … length - 1 in float32, [K, tokens, D]. What lies behind them in a page is foreign."""
    first_page = first // PAGE_SIZE
    pages = cache[page_table[first_page : -(-length // PAGE_SIZE)].long()]
    tokens = pages.transpose(0, 1).flatten(1, 2)
    start = first_page * PAGE_SIZE
    return tokens[:, first - start : length - start].float()
