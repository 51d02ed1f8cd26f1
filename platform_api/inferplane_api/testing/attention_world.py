"""Requests, pages and steps for one attention backend, with a float64 oracle beside; plays core's part in small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from inferplane_api.attention import AttentionContext
from inferplane_api.batch import AttentionBatch
from inferplane_api.kv import NULL_PAGE, AttentionKind, KVGroupSpec, KVLayout, KVView
from inferplane_api.reference.attention import dense_attention
from inferplane_api.testing.buckets import bucket_for, pad_rows
from inferplane_api.testing.case import Lie, NotTested, require
from inferplane_api.testing.compare import difference, same_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferplane_api.platform import GraphCapture
    from inferplane_api.spec import SchedulingConstraints

TOLERANCES = {"float32": (2e-5, 2e-5), "bfloat16": (2e-2, 2e-2), "float16": (4e-3, 4e-3)}
"""Per type of q: (relative, absolute), against float64 on the same rounded numbers."""

NUM_LAYERS = 2
SPARE_PAGES = 3
STALE = 997.0
"""What an earlier request left in a page: finite, and nothing that a present request may see."""


class Point(NamedTuple):
    """One point of the matrix of what a backend declares."""

    kind: AttentionKind
    dtype: str
    kv_dtype: str
    head_size: int
    page: int
    num_heads: int
    num_kv_heads: int
    window: int | None = None
    softcap: float | None = None
    layout: KVLayout = KVLayout()
    lse: bool = False

    def __str__(self) -> str:
        parts = [self.kind, self.dtype]
        if self.kv_dtype != self.dtype:
            parts.append(f"kv-{self.kv_dtype}")
        parts += [f"head{self.head_size}", f"page{self.page}", f"{self.num_heads}x{self.num_kv_heads}"]
        parts += [f"window{self.window}"] if self.window is not None else []
        parts += [f"softcap{self.softcap:g}"] if self.softcap is not None else []
        parts += ["lse"] if self.lse else []
        return "-".join([*parts, self.layout.order])

    @property
    def scale(self) -> float:
        """Not the usual one, so that a backend which ignores it is seen."""
        return 1.25 / math.sqrt(self.head_size)

    @property
    def tolerance(self) -> tuple[float, float]:
        """(relative, absolute)."""
        return TOLERANCES[self.dtype]


class Request:
    """All queries, keys and values of one request, on the host in float32 already rounded, and its pages."""

    def __init__(self, tokens: int, pages: list[int], point: Point, generator: torch.Generator) -> None:
        def normal(heads: int) -> torch.Tensor:
            drawn = torch.randn((tokens, heads, point.head_size), generator=generator)
            return drawn.to(getattr(torch, point.dtype))

        self.q, self.k, self.v = normal(point.num_heads), normal(point.num_kv_heads), normal(point.num_kv_heads)
        self.pages = pages
        self.done = 0

    @property
    def remaining(self) -> int:
        """Tokens that no step has computed."""
        return len(self.q) - self.done


class Row(NamedTuple):
    """A row of a step: the next `tokens` tokens of a request."""

    request: Request
    tokens: int


class World:
    """A pool, a backend made for a point, and steps over them."""

    def __init__(self, point: Point, lengths: Sequence[int], backend: Any, device: torch.device, seed: int = 0) -> None:
        self.point = point
        self.device = device
        self.scheduling: SchedulingConstraints = backend.scheduling
        generator = torch.Generator().manual_seed(1)
        counts = [-(-length // point.page) for length in lengths]
        num_pages = 1 + sum(counts) + SPARE_PAGES
        shuffled = np.random.default_rng(seed).permutation(num_pages - 1) + 1
        pages = np.split(shuffled, np.cumsum(counts))
        self.requests = [
            Request(length, [int(page) for page in own], point, generator)
            for length, own in zip(lengths, pages, strict=False)
        ]
        self.view = self._make_view(num_pages, [page for request in self.requests for page in request.pages])
        self.max_pages = max(counts) + 1
        self.attention = backend.load(self._context(sum(lengths), len(lengths) + 1))
        self.graphs: GraphCapture | None = None
        self._steps = 0
        self._buffers: tuple[torch.Tensor, ...] = ()
        self._replay: Callable[[], Any] = lambda: None

    def _make_view(self, num_pages: int, used: list[int]) -> KVView:
        """Layer 1 of a pool of two layers, as core lays it out: NaN, but for the null page and stale numbers."""
        point = self.point
        shape = (point.page, point.num_kv_heads, point.head_size)
        if point.layout.order == "htd":
            shape = (shape[1], shape[0], shape[2])
        plane = shape[0] * shape[1] * shape[2]
        elements = 2 * NUM_LAYERS * plane
        pool = torch.full((num_pages, elements), float("nan"), dtype=getattr(torch, point.kv_dtype))
        pool[used] = STALE
        pool[NULL_PAGE] = 0
        self.pool = pool.to(self.device)
        strides = (elements, shape[1] * shape[2], shape[2], 1)
        k, v = (self.pool.as_strided((num_pages, *shape), strides, plane * index) for index in (2, 3))
        return KVView(k, v, point.layout, point.page)

    def _context(self, max_tokens: int, max_requests: int) -> AttentionContext:
        point = self.point
        group = KVGroupSpec(
            index=0,
            kind=point.kind,
            layers=tuple(range(NUM_LAYERS)),
            tokens_per_page=point.page,
            num_heads=point.num_heads,
            num_kv_heads=point.num_kv_heads,
            head_size=point.head_size,
            dtype=point.kv_dtype,
            window=point.window,
            layout=point.layout,
        )
        tokens, batch = self.scheduling.token_buckets, self.scheduling.batch_buckets
        return AttentionContext(
            group=group,
            num_heads=point.num_heads,
            scale=point.scale,
            dtype=getattr(torch, point.dtype),
            device=self.device,
            max_tokens=tokens[-1] if tokens else max(16, max_tokens),
            max_requests=batch[-1] if batch else max_requests,
            max_pages=self.max_pages,
            softcap=point.softcap,
        )

    def step(self, rows: Sequence[Row], *, padding: int = 0, reuse: bool = False) -> torch.Tensor:
        """Run one step and compare it with the oracle. Rows with one token come first.

        padding: rows and tokens that belong to nobody; buckets add theirs. reuse: run again with k and v None. Returns
        out [T, H, D] on the host, padded tokens taken off. Raises Lie saying what is wrong.
        """
        num_tokens = sum(row.tokens for row in rows)
        size = bucket_for(num_tokens + padding, self.scheduling.token_buckets)
        num_rows = bucket_for(len(rows) + padding, self.scheduling.batch_buckets)
        if size is None or num_rows is None:
            raise NotTested(f"{num_tokens} tokens in {len(rows)} rows fit none of the device's buckets")
        q, k, v = self._inputs(rows, size)
        kept = [x.clone() for x in (q, k, v)]
        out = torch.full((size, *q.shape[1:]), float("nan"), dtype=q.dtype, device=self.device)
        lse = torch.full(q.shape[:2], float("nan"), device=self.device) if self.point.lse else None
        self.attention.plan(self._batch(rows, num_rows, size))
        self._run(q, k, v, out, lse)
        for row in rows:
            row.request.done += row.tokens
        self._check(rows, out, lse)
        for name, now, before in zip("qkv", (q, k, v), kept, strict=True):
            require(same_bytes(now, before), f"it changes {name}")
        require(not bool(self.view.k[NULL_PAGE].any() | self.view.v[NULL_PAGE].any()), "it writes to the null page")
        if reuse:
            again = torch.full_like(out, float("nan"))
            self.attention.run(q, None, None, self.view, again)
            self._check(rows, again, None, " when another layer wrote the keys (k and v are None)")
        return out[:num_tokens].cpu()

    def begin_capture(self, graphs: GraphCapture) -> None:
        """The next step runs as before, to warm up; the one after it is captured, and replayed for itself and all that
        follow, which must have its shape."""
        self.graphs = graphs
        self._steps = 0

    def _run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        self._steps += 1
        if self.graphs is None or self._steps == 1:
            arguments = {"lse": lse} if lse is not None else {}
            self.attention.run(q, k, v, self.view, out, **arguments)
            return
        if not self._buffers:
            self._buffers = (*(x.clone() for x in (q, k, v)), out.clone())
            static_q, static_k, static_v, static_out = self._buffers
            self._replay = self.graphs.capture(
                (len(q),), lambda: self.attention.run(static_q, static_k, static_v, self.view, static_out)
            )
        for buffer, new in zip(self._buffers, (q, k, v, out), strict=True):
            buffer.copy_(new)
        self._replay()
        out.copy_(self._buffers[3])

    def _inputs(self, rows: Sequence[Row], size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v as views of two products with their heads side by side, as layers hand them over."""
        spans = [slice(row.request.done, row.request.done + row.tokens) for row in rows]
        parts = [(row.request, span) for row, span in zip(rows, spans, strict=True)]
        q = torch.cat([request.q[span] for request, span in parts])
        k = torch.cat([request.k[span] for request, span in parts])
        v = torch.cat([request.v[span] for request, span in parts])
        both = pad_rows(torch.cat((q, k), dim=1), size).to(self.device)
        three = pad_rows(torch.cat((q, k, v), dim=1), size).to(self.device)
        heads = self.point.num_heads
        return both[:, :heads], both[:, heads:], three[:, heads + self.point.num_kv_heads :]

    def _batch(self, rows: Sequence[Row], num_rows: int, size: int) -> AttentionBatch:
        point = self.point
        counts = [row.tokens for row in rows]
        query_start = np.zeros(num_rows + 1, np.int32)
        query_start[1 : len(rows) + 1] = np.cumsum(counts)
        query_start[len(rows) + 1 :] = sum(counts)
        seq_lens = np.zeros(num_rows, np.int32)
        seq_lens[: len(rows)] = [row.request.done + row.tokens for row in rows]
        fixed = self.graphs is not None or self.scheduling.token_buckets or self.scheduling.batch_buckets
        width = self.max_pages if fixed else 1 + -(-int(seq_lens.max()) // point.page)
        table = np.full((num_rows, width), NULL_PAGE, np.int32)
        slots = np.full(size, -1, np.int64)
        for index, row in enumerate(rows):
            used = row.request.pages[: -(-int(seq_lens[index]) // point.page)]
            table[index, : len(used)] = used
            if point.window is not None:
                table[index, : max(0, row.request.done - point.window + 1) // point.page] = NULL_PAGE
            positions = np.arange(row.request.done, row.request.done + row.tokens)
            own = np.array(row.request.pages)[positions // point.page] * point.page + positions % point.page
            slots[query_start[index] : query_start[index + 1]] = own
        self.slots = slots
        decode = next((index for index, count in enumerate(counts) if count != 1), len(counts))
        return AttentionBatch(
            query_start=torch.from_numpy(query_start).to(self.device),
            seq_lens=torch.from_numpy(seq_lens).to(self.device),
            page_table=torch.from_numpy(table).to(self.device),
            slot_mapping=torch.from_numpy(slots).to(self.device),
            query_start_host=query_start,
            seq_lens_host=seq_lens,
            num_decode_rows=decode,
            max_query_len=max(counts),
            max_seq_len=int(seq_lens.max()),
        )

    def _check(self, rows: Sequence[Row], out: torch.Tensor, lse: torch.Tensor | None, when: str = "") -> None:
        point = self.point
        kv_type = getattr(torch, point.kv_dtype)
        starts = np.concatenate(([0], np.cumsum([row.tokens for row in rows])))
        want, want_lse = dense_attention(
            torch.cat([row.request.q[row.request.done - row.tokens : row.request.done] for row in rows]),
            [row.request.k[: row.request.done].to(kv_type) for row in rows],
            [row.request.v[: row.request.done].to(kv_type) for row in rows],
            query_start=[int(start) for start in starts],
            seq_lens=[row.request.done for row in rows],
            scale=point.scale,
            window=point.window,
            softcap=point.softcap,
        )
        got = out[: len(want)]
        problem = difference(got, want, *point.tolerance)
        if problem:
            if bool(torch.isnan(got).any()):
                problem += "; NaN is what unrelated pages and an unwritten out hold"
            lengths = ", ".join(f"{row.tokens} of {row.request.done}" for row in rows)
            raise Lie(f"out is wrong{when} in a step with rows of (tokens of context) {lengths}: {problem}")
        if lse is not None and (problem := difference(lse[: len(want)], want_lse, *point.tolerance)):
            raise Lie(f"lse is wrong{when}: {problem}")
