"""Paged attention on torch's scaled_dot_product_attention: decode rows in padded batches, prompt chunks one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from inferplane_api.errors import Unsupported
from inferplane_api.reference.ops import kv_write
from inferplane_cpu.kv_rows import TokenRows, token_rows

if TYPE_CHECKING:
    from inferplane_api.attention import AttentionContext, KVScales
    from inferplane_api.batch import AttentionBatch
    from inferplane_api.kv import KVView

Ints = npt.NDArray[np.int64]
Pages = npt.NDArray[np.int32]
Pair = tuple[torch.Tensor, torch.Tensor]

SHORTEST_IN_BUCKET = 0.7
"""Decode rows share a padded batch down to this share of its longest row."""

QUERY_BLOCK = 512
"""Queries of a prompt chunk that share a mask; bounds the mask's size and, with a window, the keys looked at."""


class Decode(NamedTuple):
    """Rows with one query each, padded to S visible tokens."""

    rows: torch.Tensor | None
    """[r] int64, their tokens in the step; None: all of the step's tokens."""
    num_rows: int
    slots: torch.Tensor
    """[r * S] int64. Padding repeats the row's last token, so that nothing foreign is ever read."""
    mask: torch.Tensor | None
    """[r, 1, G, S], 0 or -inf, G query heads a key head; None where all is visible."""


class Block(NamedTuple):
    """Some queries of one row, and the part of the row's keys that they look at."""

    start: int
    end: int
    """In the step's tokens."""
    first: int
    last: int
    """In the chunk's keys."""
    mask: torch.Tensor | None
    """[queries, last - first], 0 or -inf; None: causal from the first key on."""


class Chunk(NamedTuple):
    """A row with several queries."""

    start: int
    end: int
    """Its tokens in the step."""
    slots: torch.Tensor
    """[S] int64, the tokens that are looked at."""
    own: bool
    """The step itself holds all of them, in the cache's type."""
    blocks: tuple[Block, ...]


class SDPAAttention:
    """Implements `inferplane_api.attention.PagedAttention` for kinds full and sliding."""

    def __init__(self, context: AttentionContext) -> None:
        if context.softcap is not None:
            raise Unsupported("cpu.sdpa has no softcap", remedy="choose another --attention-backend")
        group = context.group
        self._window = group.window
        self._scale = context.scale
        self._heads = (group.num_kv_heads, context.num_heads // group.num_kv_heads)
        self._head_size = group.head_size
        self._dtype = context.dtype
        self._tokens_per_page = group.tokens_per_page
        self._same_dtype = getattr(torch, group.dtype) == context.dtype
        self._batch: AttentionBatch | None = None
        self._decodes: list[Decode] = []
        self._chunks: list[Chunk] = []
        self._key: int | None = None
        self._written = torch.empty(0, dtype=torch.int64)
        self._decode_indices: list[torch.Tensor] = []
        self._chunk_indices: list[torch.Tensor] = []

    def plan(self, batch: AttentionBatch) -> None:
        """Work out what each row reads. Where that lies in memory is worked out with the step's first layer."""
        self._batch = batch
        self._key = None
        lengths, query_start = batch.seq_lens_host.astype(np.int64), batch.query_start_host.tolist()
        self._num_tokens = query_start[-1]
        self._all_live = bool((lengths > 0).all())
        self._padded = batch.slot_mapping.numel() > 0 and int(batch.slot_mapping.min()) < 0
        table = batch.page_table.numpy()
        self._decodes = self._plan_decodes(table, lengths[: batch.num_decode_rows])
        self._chunks = [
            self._plan_chunk(table[row], query_start[row], query_start[row + 1], length)
            for row, length in enumerate(lengths.tolist())
            if row >= batch.num_decode_rows and length > 0 and query_start[row + 1] > query_start[row]
        ]

    def _plan_decodes(self, table: Pages, lengths: Ints) -> list[Decode]:
        visible = lengths if self._window is None else np.minimum(lengths, self._window)
        order = np.argsort(-visible, kind="stable")
        order = order[visible[order] > 0]
        decodes = []
        while order.size:
            longest = int(visible[order[0]])
            size = int((visible[order] >= SHORTEST_IN_BUCKET * longest).sum())
            rows, order = np.sort(order[:size]), order[size:]
            seen, offsets = visible[rows, None], np.arange(longest)
            positions = lengths[rows, None] - seen + np.minimum(offsets, seen - 1)
            slots = self._slots(table, rows[:, None], positions).flatten()
            whole = size == self._num_tokens and not self._padded
            mask = self._decode_mask(offsets >= seen)
            decodes.append(Decode(None if whole else torch.from_numpy(rows), size, slots, mask))
        return decodes

    def _decode_mask(self, hidden: npt.NDArray[np.bool_]) -> torch.Tensor | None:
        if not hidden.any():
            return None
        num_rows, longest = hidden.shape
        mask = torch.zeros((num_rows, 1, 1, longest), dtype=self._dtype)
        mask.masked_fill_(torch.from_numpy(hidden)[:, None, None], -torch.inf)
        return mask.expand(num_rows, 1, self._heads[1], longest)

    def _plan_chunk(self, pages: Pages, start: int, end: int, length: int) -> Chunk:
        window = length if self._window is None else self._window
        before = length - (end - start)
        base = max(0, before - window + 1)
        slots = self._slots(pages[None], np.zeros(1, np.int64), np.arange(base, length))
        if before == 0 and window >= length:
            return Chunk(start, end, slots, self._same_dtype, (Block(start, end, 0, length, None),))
        blocks = []
        for block in range(start, end, QUERY_BLOCK):
            block_end = min(end, block + QUERY_BLOCK)
            first_query, last = before + (block - start), before + (block_end - start)
            first = max(0, first_query - window + 1)
            queries, keys = torch.arange(first_query, last)[:, None], torch.arange(first, last)
            hidden = (keys > queries) | (keys <= queries - window)
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
            blocks.append(Block(block, block_end, first - base, last - base, mask))
        return Chunk(start, end, slots, self._same_dtype and before == 0, tuple(blocks))

    def _slots(self, table: Pages, rows: Ints, positions: Ints) -> torch.Tensor:
        pages, offsets = np.divmod(positions, self._tokens_per_page)
        return torch.from_numpy(table[rows, pages].astype(np.int64) * self._tokens_per_page + offsets)

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
        """As the protocol says; tokens of no row get out 0. Raises Unsupported for lse and scales."""
        if lse is not None or scales is not None:
            raise Unsupported("cpu.sdpa gives no logsumexp and reads no quantized cache")
        if self._batch is None:
            raise RuntimeError("plan() has not been called")
        rows = token_rows(kv)
        if rows.key != self._key:
            self._locate(rows, self._batch)
        if k is not None and v is not None:
            if self._padded:
                kv_write(k, v, kv, self._batch.slot_mapping)
            else:
                rows.write(k, v, self._written)
        if not self._all_live or self._num_tokens < len(out):
            out.zero_()
        for decode, index in zip(self._decodes, self._decode_indices, strict=True):
            self._run_decode(decode, q, rows.gather(index, self._dtype), out)
        for chunk, index in zip(self._chunks, self._chunk_indices, strict=True):
            if chunk.own and k is not None and v is not None:
                self._run_chunk(chunk, q, (k[chunk.start : chunk.end], v[chunk.start : chunk.end]), out)
            else:
                self._run_chunk(chunk, q, rows.gather(index, self._dtype), out)

    def _locate(self, rows: TokenRows, batch: AttentionBatch) -> None:
        """Layers of a group lie at the same strides: once a step."""
        self._key = rows.key
        self._written = rows.index(batch.slot_mapping)
        self._decode_indices = [rows.index(decode.slots) for decode in self._decodes]
        self._chunk_indices = [rows.index(chunk.slots) for chunk in self._chunks]

    def _run_decode(self, decode: Decode, q: torch.Tensor, kv: Pair, out: torch.Tensor) -> None:
        """The query heads of a key head stand where queries do, so that grouped heads cost no copy."""
        kv_heads, group = self._heads
        query = q if decode.rows is None else q.index_select(0, decode.rows)
        query = query.view(decode.num_rows, kv_heads, group, self._head_size)
        k, v = (plane.view(decode.num_rows, -1, kv_heads, self._head_size).transpose(1, 2) for plane in kv)
        result = F.scaled_dot_product_attention(query, k, v, attn_mask=decode.mask, scale=self._scale)
        result = result.reshape(decode.num_rows, kv_heads * group, self._head_size)
        if decode.rows is None:
            out.copy_(result)
        else:
            out.index_copy_(0, decode.rows, result)

    def _run_chunk(self, chunk: Chunk, q: torch.Tensor, kv: Pair, out: torch.Tensor) -> None:
        """Key heads stand where the batch does, and are repeated without a copy."""
        kv_heads, group = self._heads
        k, v = (
            plane.reshape(-1, kv_heads, 1, self._head_size).permute(1, 2, 0, 3).expand(-1, group, -1, -1)
            for plane in kv
        )
        for start, end, first, last, mask in chunk.blocks:
            result = F.scaled_dot_product_attention(
                q[start:end].view(-1, kv_heads, group, self._head_size).permute(1, 2, 0, 3),
                k[:, :, first:last],
                v[:, :, first:last],
                attn_mask=mask,
                is_causal=mask is None,
                scale=self._scale,
            )
            out[start:end].view(-1, kv_heads, group, self._head_size).copy_(result.permute(2, 0, 1, 3))
