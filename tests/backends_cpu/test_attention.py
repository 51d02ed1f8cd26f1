"""cpu.sdpa and cpu.native (every instruction set) against the dense float64 oracle.

Pages lie in disorder, with poison everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferplane_api.attention import AttentionContext, KVScales, PagedAttention
from inferplane_api.batch import AttentionBatch
from inferplane_api.errors import Unsupported
from inferplane_api.kv import KVGroupSpec, KVLayout, KVView
from inferplane_api.reference.attention import dense_attention
from inferplane_cpu import attention as attention_module
from inferplane_cpu.attention import SDPAAttention
from inferplane_cpu.native import executor
from inferplane_cpu.native.attention import NativeAttention
from inferplane_cpu.native.library import instruction_sets

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


BACKENDS = ("sdpa", *instruction_sets())


def make(name: str, context: AttentionContext) -> PagedAttention:
    """The backend of a name of BACKENDS: three threads, more than the machine may have, for the native ones."""
    if name == "sdpa":
        return SDPAAttention(context)
    executor.configure(3, isa=name)
    return NativeAttention(context)


@pytest.fixture(autouse=True)
def _torch_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Case:
    """Rows of (tokens before this step, tokens of this step) in a poisoned pool of two layers."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        *,
        window: int | None = None,
        heads: tuple[int, int] = (4, 2),
        size: int = 16,
        page: int = 4,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        gap: int = 0,
        seed: int = 0,
        backend: str = "sdpa",
    ) -> None:
        self.backend = backend
        self.rows = sorted(rows, key=lambda row: row[1] != 1)
        self.window, self.dtype, self.page = window, dtype, page
        self.kv_dtype = kv_dtype or dtype
        num_heads, num_kv_heads = heads
        self.random = torch.Generator().manual_seed(seed)
        lengths = [before + count for before, count in self.rows]
        pages_of = [-(-length // page) for length in lengths]
        num_pages = 1 + sum(pages_of) + 2
        order = (1 + torch.randperm(num_pages - 1, generator=self.random)).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in pages_of]
        plane = page * num_kv_heads * size
        self.pool = torch.full((num_pages, 4 * plane + gap), torch.nan, dtype=self.kv_dtype)
        self.pool[0] = 0
        strides = (self.pool.stride(0), num_kv_heads * size, size, 1)
        planes = [self.pool.as_strided((num_pages, page, num_kv_heads, size), strides, plane * i) for i in range(4)]
        self.kv = KVView(k=planes[2], v=planes[3], layout=KVLayout(), tokens_per_page=page)
        self.k = [self.normal(length, num_kv_heads, size) for length in lengths]
        self.v = [self.normal(length, num_kv_heads, size) for length in lengths]
        for row, (before, _) in enumerate(self.rows):
            for position in range(before):
                self.slot(self.kv.k, row, position).copy_(self.k[row][position])
                self.slot(self.kv.v, row, position).copy_(self.v[row][position])
        self.q = torch.cat([self.normal(count, num_heads, size) for _, count in self.rows])
        group = KVGroupSpec(
            index=0, kind="full" if window is None else "sliding", layers=(0, 1), tokens_per_page=page,
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=size, dtype=NAMES[self.kv_dtype], window=window,
        )  # fmt: skip
        self.context = AttentionContext(
            group=group, num_heads=num_heads, scale=size**-0.5, dtype=dtype, device=torch.device("cpu"),
            max_tokens=999, max_requests=99, max_pages=99,
        )  # fmt: skip

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random).to(self.kv_dtype).to(self.dtype)

    def slot(self, plane: torch.Tensor, row: int, position: int) -> torch.Tensor:
        return plane[self.tables[row][position // self.page], position % self.page]

    def batch(self) -> AttentionBatch:
        counts = [count for _, count in self.rows]
        lengths = np.array([before + count for before, count in self.rows], np.int32)
        starts = np.cumsum([0, *counts]).astype(np.int32)
        table = torch.zeros((len(self.rows), max(map(len, self.tables))), dtype=torch.int32)
        for row, pages in enumerate(self.tables):
            # entries that the window has left are the null page
            first = 0 if self.window is None else max(0, self.rows[row][0] - self.window + 1) // self.page
            table[row, : len(pages)] = torch.tensor(pages)
            table[row, :first] = 0
        slots = [
            self.tables[row][position // self.page] * self.page + position % self.page
            for row, (before, count) in enumerate(self.rows)
            for position in range(before, before + count)
        ]
        return AttentionBatch(
            query_start=torch.from_numpy(starts), seq_lens=torch.from_numpy(lengths), page_table=table,
            slot_mapping=torch.tensor(slots), query_start_host=starts, seq_lens_host=lengths,
            num_decode_rows=sum(count == 1 for count in counts), max_query_len=max(counts),
            max_seq_len=int(lengths.max()),
        )  # fmt: skip

    def step(self, values: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([value[before:] for value, (before, _) in zip(values, self.rows, strict=True)])

    def run(self, **changes: Any) -> torch.Tensor:
        backend = make(self.backend, self.context)
        backend.plan(self.batch()._replace(**changes))
        out = torch.full_like(self.q, torch.nan)
        backend.run(self.q, self.step(self.k), self.step(self.v), self.kv, out)
        return out

    def expected(self) -> torch.Tensor:
        batch = self.batch()
        out, _ = dense_attention(
            self.q, self.k, self.v, query_start=batch.query_start_host.tolist(),
            seq_lens=batch.seq_lens_host.tolist(), scale=self.context.scale, window=self.window,
        )  # fmt: skip
        return out

    def check(self) -> None:
        limit = TOLERANCE[self.dtype]
        torch.testing.assert_close(self.run().double(), self.expected(), rtol=limit, atol=limit)


ROWS = st.lists(
    st.one_of(st.tuples(st.integers(0, 40), st.just(1)), st.tuples(st.integers(0, 30), st.integers(2, 25))),
    min_size=1,
    max_size=7,
)


@settings(max_examples=80, deadline=None)
@given(
    rows=ROWS,
    window=st.sampled_from([None, 1, 3, 8, 33]),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 2), (8, 1)]),
    page=st.sampled_from([1, 3, 4, 16]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
    gap=st.sampled_from([0, 64, 7]),
    query_block=st.sampled_from([4, 512]),
)
def test_equals_the_oracle(
    rows: Any, window: Any, heads: Any, page: int, dtype: torch.dtype, gap: int, query_block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_module, "QUERY_BLOCK", query_block)
        Case(rows, window=window, heads=heads, page=page, dtype=dtype, gap=gap, size=8).check()


@pytest.mark.parametrize("backend", BACKENDS[1:])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.one_of(
            st.tuples(st.one_of(st.integers(0, 140), st.integers(600, 1300)), st.just(1)),
            st.tuples(st.integers(0, 150), st.integers(2, 150)),
        ),
        min_size=1,
        max_size=5,
    ),
    window=st.sampled_from([None, None, 1, 3, 33, 200]),
    heads=st.sampled_from([(4, 4), (6, 2), (9, 3), (8, 1), (5, 1)]),
    size=st.sampled_from([8, 33, 64, 80, 256]),
    page=st.sampled_from([1, 3, 16, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kv_dtype=st.sampled_from([None, None, torch.float32, torch.bfloat16]),
    gap=st.sampled_from([0, 64, 7]),
)
def test_native_equals_the_oracle(
    backend: str,
    rows: Any,
    window: Any,
    heads: Any,
    size: int,
    page: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    gap: int,
) -> None:
    """Long rows are split over threads, chunks are longer than a block of keys, heads end inside a vector."""
    case = Case(
        rows, window=window, heads=heads, size=size, page=page, dtype=dtype, kv_dtype=kv_dtype, gap=gap, backend=backend
    )
    limit = max(TOLERANCE[dtype], TOLERANCE[case.kv_dtype])
    torch.testing.assert_close(case.run().double(), case.expected(), rtol=limit, atol=limit)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_long_rows_of_different_lengths_are_split_and_joined_each_for_itself(backend: str) -> None:
    """Few rows and many keys: the pieces of a row are computed by several threads, in any order."""
    case = Case([(1300, 1), (640, 1), (90, 1)], heads=(6, 2), size=64, page=16, backend=backend)
    expected = case.expected()
    for _ in range(10):
        torch.testing.assert_close(case.run().double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_native_gives_the_logsumexp_and_caps_scores(backend: str, softcap: float | None) -> None:
    case = Case([(300, 1), (3, 1), (10, 40)], heads=(6, 2), size=64)
    native = make(backend, case.context._replace(softcap=softcap, scale=0.7))
    batch = case.batch()
    native.plan(batch)
    out, lse = torch.empty_like(case.q), torch.empty(case.q.shape[:2])
    native.run(case.q, case.step(case.k), case.step(case.v), case.kv, out, lse=lse)
    expected, expected_lse = dense_attention(
        case.q, case.k, case.v, query_start=batch.query_start_host.tolist(), seq_lens=batch.seq_lens_host.tolist(),
        scale=0.7, softcap=softcap,
    )  # fmt: skip
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=2e-5, atol=2e-5)


def test_a_cache_of_another_type_is_read_as_it_was_rounded() -> None:
    """A fresh prompt must see what a later chunk would see: the cached values, not its own exact ones."""
    case = Case([(0, 9), (5, 4), (7, 1)], kv_dtype=torch.bfloat16)
    exact = Case([(0, 9), (5, 4), (7, 1)], kv_dtype=torch.bfloat16)
    exact.k = [k + 0.001 * torch.randn(k.shape, generator=exact.random) for k in exact.k]
    rounded = exact.run()
    exact.k = [k.bfloat16().float() for k in exact.k]
    for row, (before, _) in enumerate(exact.rows):
        exact.k[row][:before] = case.k[row][:before]
    torch.testing.assert_close(rounded.double(), exact.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_its_slots_and_nothing_else(backend: str) -> None:
    case = Case([(3, 1), (0, 6), (5, 3)], backend=backend)
    before = case.pool.clone()
    case.run()
    for row, (start, count) in enumerate(case.rows):
        for position in range(start, start + count):
            assert torch.equal(case.slot(case.kv.k, row, position), case.k[row][position])
            assert torch.equal(case.slot(case.kv.v, row, position), case.v[row][position])
            case.slot(case.kv.k, row, position).fill_(0)
            case.slot(case.kv.v, row, position).fill_(0)
    case.pool[torch.isnan(before) & (case.pool == 0)] = torch.nan
    assert torch.equal(torch.nan_to_num(case.pool, nan=9.0), torch.nan_to_num(before, nan=9.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_read_what_other_rows_of_the_step_write(backend: str) -> None:
    """The second row's prefix is the page that the first one fills in this very step."""
    case = Case([(0, 4), (4, 3)], backend=backend)
    case.tables[1][0] = case.tables[0][0]
    case.k[1][:4], case.v[1][:4] = case.k[0], case.v[0]
    case.check()


@pytest.mark.parametrize("name", BACKENDS)
def test_without_keys_the_cache_is_read(name: str) -> None:
    case = Case([(0, 5), (2, 1), (4, 6)], backend=name)
    case.run()
    backend = make(name, case.context)
    backend.plan(case.batch())
    out = torch.empty_like(case.q)
    backend.run(case.q, None, None, case.kv, out)
    torch.testing.assert_close(out.double(), case.expected(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_padded_tokens_are_not_written_and_give_zero(name: str) -> None:
    case = Case([(3, 1), (0, 5)])
    batch = case.batch()
    real = int(batch.query_start_host[-1])
    backend = make(name, case.context)
    starts = np.append(batch.query_start_host, real + 2).astype(np.int32)
    lengths = np.append(batch.seq_lens_host, 0).astype(np.int32)
    backend.plan(
        batch._replace(
            query_start=torch.from_numpy(starts), query_start_host=starts,
            seq_lens=torch.from_numpy(lengths), seq_lens_host=lengths,
            page_table=torch.cat([batch.page_table, batch.page_table.new_zeros((1, batch.page_table.shape[1]))]),
            slot_mapping=torch.cat([batch.slot_mapping, torch.tensor([-1, -1])]),
        )
    )  # fmt: skip

    def pad(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x.new_full((2, *x.shape[1:]), torch.nan)])

    out = torch.full_like(pad(case.q), torch.nan)
    backend.run(pad(case.q), pad(case.step(case.k)), pad(case.step(case.v)), case.kv, out)
    assert not out[real:].any()
    torch.testing.assert_close(out[:real].double(), case.expected(), rtol=2e-5, atol=2e-5)
    assert not case.pool[0].any(), "the null page stays zero"


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_rows_nan_stays_its_own(backend: str) -> None:
    case = Case([(6, 1), (9, 1), (3, 4)], backend=backend)
    case.k[0][2] = torch.nan
    case.slot(case.kv.k, 0, 2).fill_(torch.nan)
    out, expected = case.run(), case.expected()
    assert torch.isnan(out[0]).all()
    torch.testing.assert_close(out[1:].double(), expected[1:], rtol=2e-5, atol=2e-5)


def test_many_lengths_make_few_batches_with_little_padding() -> None:
    case = Case([(length, 1) for length in range(3, 130, 2)])
    backend = SDPAAttention(case.context)
    backend.plan(case.batch())
    padded = sum(decode.slots.numel() for decode in backend._decodes)
    assert len(backend._decodes) <= 12
    assert padded < 1.25 * sum(before + 1 for before, _ in case.rows)
    case.check()


def test_what_it_does_not_do_is_refused() -> None:
    case = Case([(0, 2)])
    with pytest.raises(Unsupported):
        SDPAAttention(case.context._replace(softcap=30.0))
    backend = SDPAAttention(case.context)
    assert isinstance(backend, PagedAttention)
    with pytest.raises(RuntimeError, match="plan"):
        backend.run(case.q, None, None, case.kv, case.q)
    backend.plan(case.batch())
    for extra in ({"lse": torch.empty(2, 4)}, {"scales": KVScales(1.0, 1.0)}):
        with pytest.raises(Unsupported):
            backend.run(case.q, None, None, case.kv, torch.empty_like(case.q), **extra)  # type: ignore[arg-type]
    transposed = case.kv._replace(layout=KVLayout(order="htd"))
    with pytest.raises(Unsupported, match="htd"):
        backend.run(case.q, None, None, transposed, torch.empty_like(case.q))
