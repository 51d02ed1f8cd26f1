"""Paged attention, a loop over rows and heads."""

from __future__ import annotations

import torch

from inferplane_api.errors import Unsupported


class LoopAttention:
    """Implements `inferplane_api.attention.PagedAttention` for full causal attention."""

    def __init__(self, context):
        if context.softcap is not None or context.group.window is not None:
            raise Unsupported("frozen_v0_1.loop has neither softcap nor window")
        self._share = context.num_heads // context.group.num_kv_heads
        self._num_heads = context.num_heads
        self._scale = context.scale

    def plan(self, batch):
        self._batch = batch

    def run(self, q, k, v, kv, out, *, lse=None, scales=None):
        assert lse is None
        assert scales is None
        batch, size = self._batch, kv.tokens_per_page
        if k is not None:
            used = batch.slot_mapping >= 0
            slots = batch.slot_mapping[used]
            kv.k[slots // size, slots % size] = k[used].to(kv.k.dtype)
            kv.v[slots // size, slots % size] = v[used].to(kv.v.dtype)
        starts = batch.query_start_host.tolist()
        for row, length in enumerate(batch.seq_lens_host.tolist()):
            start, end = starts[row], starts[row + 1]
            if start == end:
                continue
            pages = batch.page_table[row, : -(-length // size)].long()
            keys = kv.k[pages].flatten(0, 1)[:length].float()
            values = kv.v[pages].flatten(0, 1)[:length].float()
            future = torch.arange(length) > torch.arange(length - (end - start), length)[:, None]
            for head in range(self._num_heads):
                shared = head // self._share
                scores = self._scale * (q[start:end, head].float() @ keys[:, shared].t())
                weights = scores.masked_fill(future, -torch.inf).softmax(-1)
                out[start:end, head] = (weights @ values[:, shared]).to(out.dtype)
