"""Attention written to be believed: a float64 oracle over contiguous keys, and a paged reference for any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane_api.reference.ops import kv_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.attention import AttentionContext, KVScales
    from inferplane_api.batch import AttentionBatch
    from inferplane_api.kv import KVView


def dense_attention(
    q: torch.Tensor,
    k: Sequence[torch.Tensor],
    v: Sequence[torch.Tensor],
    *,
    query_start: Sequence[int],
    seq_lens: Sequence[int],
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal softmax attention, one query token at a time, in float64.

    q [T, H, D]; k and v hold one tensor [S, K, D] a request, all S = seq_lens[r] tokens of it; request r's queries are
    q[query_start[r] : query_start[r + 1]], its last tokens. Query head h reads key head h * K // H. Scores are
    scale * q·k, then softcap * tanh(score / softcap) where a softcap is given. A query sees itself and what comes
    before, of that the last `window` tokens (itself included) where a window is given.

    Returns (out [T, H, D], lse [T, H]): lse is the natural logarithm of the softmax denominator. Tokens that belong to
    no request have out 0 and lse -inf.
    """
    num_heads = q.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float64, device=q.device)
    for row, (keys, values) in enumerate(zip(k, v, strict=True)):
        start, end = int(query_start[row]), int(query_start[row + 1])
        for token in range(start, end):
            position = int(seq_lens[row]) - (end - token)
            first = 0 if window is None else max(0, position - window + 1)
            group = num_heads // keys.shape[1]
            seen_k = keys[first : position + 1].double().repeat_interleave(group, dim=1)
            seen_v = values[first : position + 1].double().repeat_interleave(group, dim=1)
            scores = scale * torch.einsum("hd,nhd->hn", q[token].double(), seen_k)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            lse[token] = torch.logsumexp(scores, dim=-1)
            out[token] = torch.einsum("hn,nhd->hd", torch.softmax(scores, dim=-1), seen_v)
    return out, lse


class PagedAttention:
    """The reference of `inferplane_api.attention.PagedAttention` for kinds full and sliding, in float32.

    Any head size, page size, layout, dtype and number of query heads per key head; row after row.
    """

    def __init__(self, context: AttentionContext) -> None:
        self._scale = context.scale
        self._softcap = context.softcap
        self._window = context.group.window
        self._batch: AttentionBatch | None = None

    def plan(self, batch: AttentionBatch) -> None:
        """Keep the step's batch; nothing is precomputed."""
        self._batch = batch

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
        """As the protocol says. Tokens of no row, or of a padded one, get out 0 and lse -inf."""
        batch = self._batch
        if batch is None:
            raise RuntimeError("plan() has not been called")
        if k is not None and v is not None:
            k_scale, v_scale = (scales.k, scales.v) if scales else (1.0, 1.0)
            kv_write(k / k_scale, v / v_scale, kv, batch.slot_mapping)
        out.zero_()
        if lse is not None:
            lse.fill_(float("-inf"))
        for row, seq_len in enumerate(batch.seq_lens_host.tolist()):
            start, end = (int(x) for x in batch.query_start_host[row : row + 2])
            if seq_len == 0 or start == end:
                continue
            row_out, row_lse = self._attend(q[start:end], kv, batch.page_table[row], seq_len, scales)
            out[start:end] = row_out.to(out.dtype)
            if lse is not None:
                lse[start:end] = row_lse

    def _attend(
        self, q: torch.Tensor, kv: KVView, pages: torch.Tensor, seq_len: int, scales: KVScales | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_queries, num_heads, _ = q.shape
        query_positions = torch.arange(seq_len - num_queries, seq_len, device=q.device)
        first = 0 if self._window is None else max(0, seq_len - num_queries - self._window + 1)
        positions = torch.arange(first, seq_len, device=q.device)
        visible = positions <= query_positions[:, None]
        if self._window is not None:
            visible &= positions > query_positions[:, None] - self._window
        keys = _gather(kv.k, kv, pages, positions) * (scales.k if scales else 1.0)
        values = _gather(kv.v, kv, pages, positions) * (scales.v if scales else 1.0)
        num_kv_heads = keys.shape[1]
        grouped = q.float().reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, -1)
        scores = self._scale * torch.einsum("qkgd,nkd->kgqn", grouped, keys)
        if self._softcap is not None:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        scores = scores.masked_fill(~visible, float("-inf"))
        lse = torch.logsumexp(scores, dim=-1)
        out = _weighted_sum(torch.softmax(scores, dim=-1), values, visible)
        return out.flatten(1, 2), lse.flatten(0, 1).transpose(0, 1)


def _gather(cache: torch.Tensor, kv: KVView, pages: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The cached vectors of some positions, [N, K, D] float32."""
    page_ids = pages[torch.div(positions, kv.tokens_per_page, rounding_mode="floor")].long()
    offsets = positions % kv.tokens_per_page
    found = cache[page_ids, offsets] if kv.layout.order == "thd" else cache[page_ids, :, offsets]
    return found.float()


def _weighted_sum(weights: torch.Tensor, values: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """weights [K, G, Q, N] times values [N, K, D], [Q, K, G, D].

    A weight of zero does not hide a value that is NaN or infinite (0 * NaN is NaN), so such values are taken out, and
    put back as NaN for the queries that do see them.
    """
    finite = torch.isfinite(values)
    if finite.all():
        return torch.einsum("kgqn,nkd->qkgd", weights, values)
    out = torch.einsum("kgqn,nkd->qkgd", weights, values.masked_fill(~finite, 0.0))
    num_bad = torch.einsum("qn,nkd->qkd", visible.float(), (~finite).float())
    return out.masked_fill((num_bad > 0).unsqueeze(2), float("nan"))
