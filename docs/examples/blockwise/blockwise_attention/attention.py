"""Paged attention one page at a time, with a running softmax: no row of scores is ever there in full.

The algorithm is the online softmax of Milakov and Gimelshein (2018), as FlashAttention uses it (Dao et al., 2022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_api.errors import Unsupported

if TYPE_CHECKING:
    from inferplane_api.attention import AttentionContext, KVScales
    from inferplane_api.batch import AttentionBatch
    from inferplane_api.kv import KVView


class BlockwiseAttention:
    """Implements `inferplane_api.attention.PagedAttention`."""

    def __init__(self, context: AttentionContext) -> None:
        if context.softcap is not None:
            raise Unsupported("blockwise.paged has no softcap", remedy="choose another --attention-backend")
        self._scale = context.scale
        self._window = context.group.window

    def plan(self, batch: AttentionBatch) -> None:
        """Once a step, for all layers of the group."""
        self._batch = batch
        self._written = (batch.slot_mapping >= 0).nonzero().flatten()  # padded tokens have slot -1
        self._slots = batch.slot_mapping[self._written]

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
        """Once a layer: all writes first, since a row may read pages that another row of the step fills."""
        if scales is not None:
            raise Unsupported("blockwise.paged reads no quantized cache")
        if k is not None and v is not None:
            pages, offsets = self._slots // kv.tokens_per_page, self._slots % kv.tokens_per_page
            kv.k[pages, offsets] = k[self._written].to(kv.k.dtype)
            kv.v[pages, offsets] = v[self._written].to(kv.v.dtype)
        out.zero_()
        starts, lengths = self._batch.query_start_host.tolist(), self._batch.seq_lens_host.tolist()
        for row, length in enumerate(lengths):
            rows = slice(starts[row], starts[row + 1])
            if rows.start < rows.stop:
                result, denominator = self._attend(q[rows], kv, self._batch.page_table[row].tolist(), length)
                out[rows] = result.to(out.dtype)
                if lse is not None:
                    lse[rows] = denominator

    def _attend(self, q: torch.Tensor, kv: KVView, pages: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The last Q of a row's `length` tokens: q [Q, H, D] gives [Q, H, D] and log-sum-exp [Q, H], float32."""
        num_queries, num_heads, head_size = q.shape
        num_kv_heads, size = kv.k.shape[2], kv.tokens_per_page
        grouped = q.float().reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, head_size)
        positions = torch.arange(length - num_queries, length)[:, None]
        largest = torch.full((*grouped.shape[:3], 1), -torch.inf)
        total = torch.zeros_like(largest)
        weighted = torch.zeros_like(grouped)
        first = 0 if self._window is None else max(0, length - num_queries - self._window + 1) // size
        for index in range(first, -(-length // size)):
            seen = torch.arange(index * size, min((index + 1) * size, length))
            keys, values = (cache[pages[index], : len(seen)].float() for cache in (kv.k, kv.v))
            hidden = seen > positions
            if self._window is not None:
                hidden |= seen <= positions - self._window
            scores = self._scale * torch.einsum("qkgd,nkd->qkgn", grouped, keys)
            scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
            new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
            shift = new_largest.masked_fill(new_largest == -torch.inf, 0.0)  # a page of which a query sees nothing
            weights, rescale = torch.exp(scores - shift), torch.exp(largest - shift)
            total = total * rescale + weights.sum(-1, keepdim=True)
            weighted = weighted * rescale + torch.einsum("qkgn,nkd->qkgd", weights, values)
            largest = new_largest
        return (weighted / total).flatten(1, 2), (largest + total.log()).flatten(1)
