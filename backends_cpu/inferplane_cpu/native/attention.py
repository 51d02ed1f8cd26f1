"""Paged attention on the compiled kernels: decode rows and prompt chunks of one step, any page size."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import torch

from inferplane_api.errors import Unsupported
from inferplane_cpu.native.executor import TYPES, executor
from inferplane_cpu.native.huge_pages import advise
from inferplane_cpu.native.structs import Attention, Batch, Cache, Kind, KvWrite

if TYPE_CHECKING:
    from inferplane_api.attention import AttentionContext, KVScales
    from inferplane_api.batch import AttentionBatch
    from inferplane_api.kv import KVView

MAX_HEAD_SIZE = 512


class NativeAttention:
    """Implements `inferplane_api.attention.PagedAttention` for kinds full and sliding.

    What `plan` is given is copied to buffers that keep their addresses, so that recorded operations see each step's.
    """

    def __init__(self, context: AttentionContext) -> None:
        group = context.group
        types = {str(dtype).removeprefix("torch."): number for dtype, number in TYPES.items()}
        if context.dtype not in TYPES or group.dtype not in types:
            raise Unsupported(
                f"cpu.native computes in {' and '.join(types)}, not in {context.dtype} with a cache of {group.dtype}",
                remedy="choose another --attention-backend or --dtype",
            )
        if group.head_size > MAX_HEAD_SIZE:
            raise Unsupported(
                f"cpu.native takes heads of at most {MAX_HEAD_SIZE} elements",
                remedy="choose another --attention-backend",
            )
        self._heads = context.num_heads
        self._kv_heads = group.num_kv_heads
        self._size = group.head_size
        self._dtype = context.dtype
        self._window = group.window or 0
        self._scale = context.scale
        self._softcap = context.softcap or 0.0
        self._cache_type = types[group.dtype]
        rows, tokens = context.max_requests, context.max_tokens
        self._query_start = np.zeros(rows + 1, np.int32)
        self._seq_lens = np.zeros(rows, np.int32)
        self._slots = np.full(tokens, -1, np.int64)
        self._batch = Batch(
            query_start=self._query_start.ctypes.data, seq_lens=self._seq_lens.ctypes.data, table_stride=0
        )
        self._table: torch.Tensor | None = None

    def plan(self, batch: AttentionBatch) -> None:
        """Copy the step's rows; the page table stays where it is until the next step."""
        rows = len(batch.seq_lens_host)
        self._query_start[: rows + 1] = batch.query_start_host
        self._seq_lens[:rows] = batch.seq_lens_host
        slots = batch.slot_mapping
        self._slots[: len(slots)] = slots.numpy()
        self._table = batch.page_table if batch.page_table.stride(-1) == 1 else batch.page_table.contiguous()
        native = self._batch
        native.num_rows, native.num_decode_rows = rows, batch.num_decode_rows
        native.num_tokens = int(batch.query_start_host[-1])
        native.page_table, native.table_stride = self._table.data_ptr(), self._table.stride(0)

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
        """As the protocol says; tokens of no row get out 0. Raises Unsupported for scales."""
        if scales is not None:
            raise Unsupported("cpu.native reads no quantized cache", remedy="choose another --kv-cache-dtype")
        if self._table is None:
            raise RuntimeError("plan() has not been called")
        cache, run = self._cache(kv), executor()
        if k is not None and v is not None:
            k, v = _packed(k), _packed(v)
            write = KvWrite(
                rows=len(k), k=k.data_ptr(), v=v.data_ptr(), slots=self._slots.ctypes.data, k_stride=k.stride(0),
                v_stride=v.stride(0), cache=cache, heads=self._kv_heads, size=self._size,
            )  # fmt: skip
            run.run(Kind.KV_WRITE, self._dtype, write, (kv.k, kv.v))
        q = _packed(q)
        if out.stride()[1:] != (self._size, 1):
            raise Unsupported("cpu.native writes packed heads only")
        arguments = Attention(
            rows=len(q), batch=ctypes.addressof(self._batch), q=q.data_ptr(), out=out.data_ptr(),
            lse=None if lse is None else lse.data_ptr(), q_stride=q.stride(0), out_stride=out.stride(0), cache=cache,
            heads=self._heads, kv_heads=self._kv_heads, size=self._size, window=self._window, scale=self._scale,
            softcap=self._softcap,
        )  # fmt: skip
        run.run(Kind.ATTENTION, self._dtype, arguments, (kv.k, kv.v, self))

    def _cache(self, kv: KVView) -> Cache:
        page, outer, inner, element = kv.k.stride()
        if kv.v.stride() != (page, outer, inner, element) or element != 1:
            raise Unsupported("cpu.native wants keys and values at the same strides")
        token, head = (outer, inner) if kv.layout.order == "thd" else (inner, outer)
        advise(kv.k)
        return Cache(
            k=kv.k.data_ptr(), v=kv.v.data_ptr(), page_stride=page, token_stride=token, head_stride=head,
            tokens_per_page=kv.tokens_per_page, type=self._cache_type,
        )  # fmt: skip


def _packed(x: torch.Tensor) -> torch.Tensor:
    """x [T, heads, size] with packed heads; tokens may lie apart."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
