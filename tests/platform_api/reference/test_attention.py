"""The paged reference against the dense float64 oracle, and the oracle against torch's own attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane_api import attention as protocols
from inferplane_api.attention import AttentionContext, KVScales
from inferplane_api.batch import AttentionBatch
from inferplane_api.kv import KVGroupSpec, KVLayout, KVView
from inferplane_api.reference.attention import PagedAttention, dense_attention

CPU = torch.device("cpu")


class Shape(NamedTuple):
    """What hypothesis chooses."""

    chunks: list[list[int]]
    """Per request, the query lengths of its steps."""
    page: int
    num_kv_heads: int
    group: int
    head_size: int
    window: int | None
    softcap: float | None
    order: Any
    seed: int


def contexts_of(shape: Shape, dtype: torch.dtype = torch.float32) -> AttentionContext:
    num_heads = shape.num_kv_heads * shape.group
    group = KVGroupSpec(
        index=0,
        kind="full" if shape.window is None else "sliding",
        layers=(0,),
        tokens_per_page=shape.page,
        num_heads=num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        dtype="float32",
        window=shape.window,
        layout=KVLayout(order=shape.order),
    )
    return AttentionContext(group, num_heads, 0.3, dtype, CPU, 256, 8, 64, softcap=shape.softcap)


def make_cache(shape: Shape, num_pages: int, dtype: torch.dtype = torch.float32) -> KVView:
    """NaN wherever nothing was written; page 0 is zero; pages are further apart than they are long."""
    inner = (
        (shape.page, shape.num_kv_heads, shape.head_size)
        if shape.order == "thd"
        else (shape.num_kv_heads, shape.page, shape.head_size)
    )
    pool = torch.full((num_pages, 2, *inner), float("nan"), dtype=dtype)
    pool[0] = 0
    return KVView(pool[:, 0], pool[:, 1], KVLayout(order=shape.order), shape.page)


def make_batch(
    shape: Shape, starts: list[int], counts: list[int], tables: np.ndarray, padding: int = 0
) -> AttentionBatch:
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    seq_lens = np.array([s + c for s, c in zip(starts, counts, strict=True)], np.int32)
    slots = []
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        slots += [tables[row, p // shape.page] * shape.page + p % shape.page for p in range(start, start + count)]
    slots += [-1] * padding
    return AttentionBatch(
        query_start=torch.from_numpy(query_start),
        seq_lens=torch.from_numpy(seq_lens),
        page_table=torch.from_numpy(tables),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        query_start_host=query_start,
        seq_lens_host=seq_lens,
        num_decode_rows=0,
        max_query_len=max(counts),
        max_seq_len=int(seq_lens.max()),
    )


shapes = st.builds(
    Shape,
    chunks=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3),
    page=st.sampled_from([1, 2, 3, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 4]),
    head_size=st.sampled_from([2, 6, 8]),
    window=st.sampled_from([None, 1, 2, 5, 100]),
    softcap=st.sampled_from([None, 1.5]),
    order=st.sampled_from(["thd", "htd"]),
    seed=st.integers(0, 1000),
)


@settings(max_examples=60, deadline=None)
@given(shape=shapes)
def test_paged_chunked_batched_equals_dense(shape: Shape) -> None:
    torch.manual_seed(shape.seed)
    num_heads = shape.num_kv_heads * shape.group
    lengths = [sum(chunks) for chunks in shape.chunks]
    qs = [torch.randn(n, num_heads, shape.head_size) for n in lengths]
    ks, vs = ([torch.randn(n, shape.num_kv_heads, shape.head_size) for n in lengths] for _ in "kv")
    query_start = np.concatenate([[0], np.cumsum(lengths)])
    expected, expected_lse = dense_attention(
        torch.cat(qs), ks, vs, query_start=query_start, seq_lens=lengths, scale=0.3, window=shape.window,
        softcap=shape.softcap,
    )  # fmt: skip

    pages_per_row = max(-(-n // shape.page) for n in lengths)
    num_pages = len(lengths) * pages_per_row + 1
    order = np.random.default_rng(shape.seed).permutation(num_pages - 1) + 1
    tables = order.reshape(len(lengths), pages_per_row).astype(np.int32)
    cache = make_cache(shape, num_pages)
    attention: protocols.PagedAttention = PagedAttention(contexts_of(shape))
    done = [0] * len(lengths)
    for step in range(max(map(len, shape.chunks))):
        rows = [r for r, chunks in enumerate(shape.chunks) if step < len(chunks)]
        counts = [shape.chunks[r][step] for r in rows]
        starts = [done[r] for r in rows]
        if shape.window is not None:
            for row, start in zip(rows, starts, strict=True):
                # Pages that no later query can see are taken away, as the scheduler does
                tables[row, : max(0, start - shape.window + 1) // shape.page] = 0
        parts = [slice(s, s + c) for s, c in zip(starts, counts, strict=True)]
        q, k, v = (torch.cat([x[r][p] for r, p in zip(rows, parts, strict=True)]) for x in (qs, ks, vs))
        attention.plan(make_batch(shape, starts, counts, tables[rows]))
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
        attention.run(q, k, v, cache, out, lse=lse)
        where = torch.cat([torch.arange(p.start, p.stop) + query_start[r] for r, p in zip(rows, parts, strict=True)])
        torch.testing.assert_close(out.double(), expected[where], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse.double(), expected_lse[where], rtol=1e-5, atol=1e-5)
        for row, count in zip(rows, counts, strict=True):
            done[row] += count
    assert not cache.k[0].any()
    assert not cache.v[0].any()


@pytest.mark.parametrize("window", [None, 4])
def test_oracle_equals_torch_attention(window: int | None) -> None:
    torch.manual_seed(0)
    q = torch.randn(9, 4, 8, dtype=torch.float64)
    k, v = (torch.randn(14, 2, 8, dtype=torch.float64) for _ in "kv")
    out, lse = dense_attention(q, [k], [v], query_start=[0, 9], seq_lens=[14], scale=0.3, window=window)
    positions, queries = torch.arange(14), torch.arange(5, 14)[:, None]
    mask = positions <= queries
    if window is not None:
        mask &= positions > queries - window
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
        attn_mask=mask, scale=0.3, enable_gqa=True,
    )  # fmt: skip
    torch.testing.assert_close(out, expected[0].transpose(0, 1))
    scores = torch.einsum("qhd,nhd->qhn", q, k.repeat_interleave(2, 1)) * 0.3
    scores = scores.masked_fill(~mask[:, None], float("-inf"))
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))


def test_oracle_softcap_equals_gemma2() -> None:
    """transformers' eager Gemma 2 attention has the same cap."""
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    torch.manual_seed(0)
    q, k, v = (torch.randn(7, 2, 8) for _ in "qkv")
    module = torch.nn.Module()
    module.num_key_value_groups = 1
    module.head_dim = 8
    mask = torch.full((7, 7), float("-inf")).triu(1)
    expected, _ = eager_attention_forward(
        module, *(x.transpose(0, 1)[None] for x in (q, k, v)), mask[None, None], scaling=2.0, softcap=3.0
    )
    out, _ = dense_attention(q, [k], [v], query_start=[0, 7], seq_lens=[7], scale=2.0, softcap=3.0)
    torch.testing.assert_close(out.float(), expected[0], rtol=1e-5, atol=1e-5)


def plain_shape(**changes: Any) -> Shape:
    return Shape([[6]], 4, 2, 2, 8, None, None, "thd", 0)._replace(**changes)


@pytest.mark.parametrize("order", ["thd", "htd"])
@pytest.mark.parametrize("window", [None, 2])
def test_a_masked_nan_stays_masked_and_a_visible_one_shows(order: str, window: int | None) -> None:
    shape = plain_shape(order=order, window=window)
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    clean = torch.empty_like(q)
    tables = np.array([[2, 1]], np.int32)
    attention = PagedAttention(contexts_of(shape))
    attention.plan(make_batch(shape, [0], [6], tables))
    attention.run(q, k, v, make_cache(shape, 3), clean)
    for broken in (k, v):
        kept = broken[3, 0].clone()
        for value in (float("nan"), float("inf")):
            broken[3, 0] = value
            out = torch.empty_like(q)
            attention.run(q, k, v, make_cache(shape, 3), out)
            sees = [token >= 3 and (window is None or token < 3 + window) for token in range(6)]
            for token in range(6):
                # query heads 0 and 1 read key head 0, the others never see it
                torch.testing.assert_close(out[token, 2:], clean[token, 2:])
                assert torch.isfinite(out[token]).all() != sees[token]
                if not sees[token]:
                    torch.testing.assert_close(out[token], clean[token])
        broken[3, 0] = kept


def test_padding_is_neither_written_nor_attended() -> None:
    shape = plain_shape()
    torch.manual_seed(0)
    q, k, v = torch.randn(9, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    cache = make_cache(shape, 3)
    tables = np.array([[2, 1], [0, 0]], np.int32)
    batch = make_batch(shape, [0], [6], tables, padding=3)
    batch = batch._replace(
        query_start_host=np.array([0, 6, 6], np.int32),
        query_start=torch.tensor([0, 6, 6], dtype=torch.int32),
        seq_lens_host=np.array([6, 0], np.int32),
        seq_lens=torch.tensor([6, 0], dtype=torch.int32),
    )
    attention = PagedAttention(contexts_of(shape))
    attention.plan(batch)
    out, lse = torch.full_like(q, 7.0), torch.full((9, 4), 7.0)
    attention.run(q, k, v, cache, out, lse=lse)
    expected, _ = dense_attention(q[:6], [k[:6]], [v[:6]], query_start=[0, 6], seq_lens=[6], scale=0.3)
    torch.testing.assert_close(out[:6].double(), expected, rtol=1e-5, atol=1e-5)
    assert not out[6:].any()
    assert torch.isneginf(lse[6:]).all()
    assert not cache.k[0].any()
    assert torch.isnan(cache.k[1, 2:]).all(), "slots beyond the sequence were written"


def test_a_row_reads_what_another_row_of_the_step_writes() -> None:
    """Two requests share the page of their common prefix; only the second one's step fills it."""
    shape = plain_shape()
    torch.manual_seed(0)
    k, v = torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    own_k, own_v, q = torch.randn(1, 2, 8), torch.randn(1, 2, 8), torch.randn(5, 4, 8)
    attention = PagedAttention(contexts_of(shape))
    tables = np.array([[2, 1], [2, 3]], np.int32)
    attention.plan(make_batch(shape, [4, 0], [1, 4], tables))
    out = torch.empty_like(q)
    attention.run(q, torch.cat([own_k, k]), torch.cat([own_v, v]), make_cache(shape, 4), out)
    expected, _ = dense_attention(
        q[:1], [torch.cat([k, own_k])], [torch.cat([v, own_v])], query_start=[0, 1], seq_lens=[5], scale=0.3
    )
    torch.testing.assert_close(out[:1].double(), expected, rtol=1e-5, atol=1e-5)


def test_without_keys_the_cache_is_read_as_it_is() -> None:
    shape = plain_shape()
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    cache = make_cache(shape, 3)
    attention = PagedAttention(contexts_of(shape))
    attention.plan(make_batch(shape, [0], [6], np.array([[2, 1]], np.int32)))
    first, second = torch.empty_like(q), torch.empty_like(q)
    attention.run(q, k, v, cache, first)
    attention.run(q, None, None, cache, second)
    assert torch.equal(first, second)


def test_scales_are_divided_out_on_writing_and_multiplied_in_on_reading() -> None:
    shape = plain_shape()
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    cache = make_cache(shape, 3)
    attention = PagedAttention(contexts_of(shape))
    attention.plan(make_batch(shape, [0], [6], np.array([[2, 1]], np.int32)))
    out = torch.empty_like(q)
    attention.run(q, k, v, cache, out, scales=KVScales(k=4.0, v=0.5))
    torch.testing.assert_close(cache.k[2], k[:4] / 4)
    torch.testing.assert_close(cache.v[2], v[:4] * 2)
    expected, _ = dense_attention(q, [k], [v], query_start=[0, 6], seq_lens=[6], scale=0.3)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_sixteen_bit_runs_in_float32_inside() -> None:
    shape = plain_shape()
    torch.manual_seed(0)
    q, k, v = (torch.randn(6, n, 8).bfloat16() for n in (4, 2, 2))
    attention = PagedAttention(contexts_of(shape, torch.bfloat16))
    attention.plan(make_batch(shape, [0], [6], np.array([[2, 1]], np.int32)))
    out = torch.empty_like(q)
    attention.run(q, k, v, make_cache(shape, 3, torch.bfloat16), out)
    expected, _ = dense_attention(q, [k], [v], query_start=[0, 6], seq_lens=[6], scale=0.3)
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-6)


def test_running_without_a_plan_is_an_error() -> None:
    shape = plain_shape()
    attention = PagedAttention(contexts_of(shape))
    q = torch.zeros(1, 4, 8)
    with pytest.raises(RuntimeError, match="plan"):
        attention.run(q, None, None, make_cache(shape, 2), torch.empty_like(q))
