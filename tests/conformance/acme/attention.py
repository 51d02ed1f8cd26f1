"""Attention of the made-up chip: first all writes, then a loop over rows and heads."""

import torch

from inferplane_api.reference.ops import kv_write

LANES = 64


class LoopAttention:
    def __init__(self, context):
        self.context = context
        self.window = context.group.window

    def plan(self, batch):
        self.batch = batch

    def write(self, k, v, kv, slots):
        kv_write(k, v, kv, slots)

    def run(self, q, k, v, kv, out, *, lse=None, scales=None):
        if k is not None:
            self.write(k, v, kv, self.batch.slot_mapping)
        for row, length in enumerate(self.batch.seq_lens_host.tolist()):
            start, end = self.batch.query_start_host[row : row + 2].tolist()
            for token in range(start, end):
                self.attend(q, kv, out, lse, row, token, length - (end - token))

    def attend(self, q, kv, out, lse, row, token, position):
        first = 0 if self.window is None else max(0, position - self.window + 1)
        positions = torch.arange(first, position + 1)
        pages = self.batch.page_table[row, positions // kv.tokens_per_page].long()
        places = positions % kv.tokens_per_page
        if kv.layout.order == "thd":
            keys, values = kv.k[pages, places], kv.v[pages, places]
        else:
            keys, values = kv.k[pages, :, places], kv.v[pages, :, places]
        group = q.shape[1] // keys.shape[1]
        keys = keys.float().repeat_interleave(group, dim=1)
        values = values.float().repeat_interleave(group, dim=1)
        scores = self.context.scale * torch.einsum("hd,nhd->hn", q[token, :, :LANES].float(), keys[..., :LANES])
        if self.context.softcap is not None:
            scores = self.context.softcap * torch.tanh(scores / self.context.softcap)
        if lse is not None:
            lse[token] = torch.logsumexp(scores, dim=-1)
        out[token] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values).to(out.dtype)
