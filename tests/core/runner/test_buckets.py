"""Static shapes: a step padded to the device's buckets gives what the step gives, and nothing else has another size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferplane.errors import InferplaneError
from inferplane.runner.step_shapes import StepShapes, pad
from inferplane.runner.warmup import warmup_steps
from inferplane_api.attention import AttentionContext
from inferplane_api.batch import AttentionBatch, StepBatch
from inferplane_api.kv import NULL_PAGE
from inferplane_api.runner import RunnerLimits
from inferplane_api.sampling import SamplingParams
from inferplane_api.spec import SchedulingConstraints

BUCKETS = (
    SchedulingConstraints(token_buckets=(4, 16, 64), batch_buckets=(1, 4, 8)),
    SchedulingConstraints(token_buckets=(128,), batch_buckets=(16,)),
    SchedulingConstraints(token_buckets=(8, 64)),
    SchedulingConstraints(batch_buckets=(2, 8)),
)
NARROW = BUCKETS[0]
TOLERANCE = 1e-4


class Recorder:
    """Stands between runner and model or backend, and keeps the shapes that it sees."""

    def __init__(self, inner: Any, shapes: set[tuple[int, ...]]) -> None:
        self._inner = inner
        self.shapes = shapes
        self.batches: list[AttentionBatch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, batch: StepBatch) -> Any:
        assert batch.input_ids.shape == batch.positions.shape
        self.shapes.add(("forward", *batch.input_ids.shape))  # type: ignore[arg-type]
        return self._inner.forward(batch)

    def logits(self, hidden: Any) -> Any:
        self.shapes.add(("logits", len(hidden)))  # type: ignore[arg-type]
        return self._inner.logits(hidden)

    def plan(self, batch: AttentionBatch) -> None:
        self.batches.append(batch)
        self._inner.plan(batch)


def sequences_of(sequence_of: Any, seed: int, count: int = 5) -> list[Any]:
    random = np.random.default_rng(seed)
    kinds = (
        SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, prompt_logprobs=0),
        SamplingParams(temperature=1.0, top_k=20, max_tokens=6, logprobs=1),
        SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, max_tokens=6),
    )
    return [
        sequence_of(random.integers(3, 300, random.integers(1, 40)).tolist(), kinds[i % 3], seed=seed + i)
        for i in range(count)
    ]


def assert_same(first: list[Any], second: list[Any]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.tokens == other.tokens
        assert [s.logprob for s in other.logprobs] == pytest.approx([s.logprob for s in one.logprobs], abs=TOLERANCE)
        assert {p: s.logprob for p, s in other.prompt_logprobs.items()} == pytest.approx(
            {p: s.logprob for p, s in one.prompt_logprobs.items()}, abs=TOLERANCE
        )


@pytest.mark.parametrize("platform", ["reference", "cpu"])
@pytest.mark.parametrize("model", ["tiny_llama_dir", "tiny_gemma3_dir"])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    buckets=st.sampled_from(BUCKETS),
    chunk=st.sampled_from([3, 16, 50]),
    preempt=st.sampled_from([0.0, 0.2]),
)
def test_a_padded_step_gives_what_the_step_gives(
    model: str,
    platform: str,
    seed: int,
    buckets: SchedulingConstraints,
    chunk: int,
    preempt: float,
    engine_of: Any,
    sequence_of: Any,
    request: pytest.FixtureRequest,
) -> None:
    path = request.getfixturevalue(model)
    common = {"seed": seed, "memory_limit_bytes": 8 * 2**20, "max_num_batched_tokens": 60, "max_model_len": 64}
    plain, padded = sequences_of(sequence_of, seed), sequences_of(sequence_of, seed)
    engine_of(path, platform, **common).scheduler.run(plain)
    engine = engine_of(path, platform, scheduling=buckets, **common)
    engine.scheduler.run(padded, chunk=chunk, preempt=preempt)
    assert_same(plain, padded)
    for view in engine.runner._views:
        assert not view.k[NULL_PAGE].any()
        assert not view.v[NULL_PAGE].any()


@pytest.mark.parametrize("buckets", BUCKETS)
def test_no_other_size_reaches_the_device(
    buckets: SchedulingConstraints, engine_of: Any, sequence_of: Any, tiny_gemma3_dir: Path
) -> None:
    engine = engine_of(tiny_gemma3_dir, scheduling=buckets, max_num_batched_tokens=60, max_model_len=64)
    runner = engine.runner
    shapes: set[Any] = set()
    model = runner._model = Recorder(runner._model, shapes)
    backends = runner._attention[:] = [Recorder(backend, shapes) for backend in runner._attention]
    engine.scheduler.run(sequences_of(sequence_of, 3), chunk=20)
    forwards = {size for name, size in model.shapes if name == "forward"}
    logits = {size for name, size in model.shapes if name == "logits"}
    assert forwards
    assert logits
    if buckets.token_buckets:
        assert forwards <= set(buckets.token_buckets)
    if buckets.batch_buckets:
        assert logits <= set(buckets.batch_buckets)
    for group, backend in zip(engine.scheduler.groups, backends, strict=True):
        for batch in backend.batches:
            check_padding(batch, buckets, width=-(-64 // group.tokens_per_page))


def check_padding(batch: AttentionBatch, buckets: SchedulingConstraints, width: int) -> None:
    num_tokens, num_rows = len(batch.slot_mapping), len(batch.seq_lens)
    if buckets.batch_buckets:
        assert num_rows in buckets.batch_buckets
    live = int((batch.seq_lens > 0).sum())
    total = int(batch.query_start[live])
    assert batch.page_table.shape == (num_rows, width)
    assert batch.query_start.shape == (num_rows + 1,)
    assert (batch.query_start[live:] == total).all()
    assert not batch.seq_lens[live:].any()
    assert not batch.page_table[live:].any()
    assert (batch.slot_mapping[:total] >= 0).all()
    assert (batch.slot_mapping[total:] == -1).all()
    assert num_tokens >= total
    assert batch.query_start_host.tolist() == batch.query_start.tolist()
    assert batch.seq_lens_host.tolist() == batch.seq_lens.tolist()
    assert batch.num_decode_rows <= live


def test_the_context_of_attention_counts_the_padding(plan_of: Callable[..., Any], tiny_llama_dir: Path) -> None:
    from inferplane.runner.create import create_runner

    plan = plan_of(tiny_llama_dir, scheduling=NARROW, max_num_batched_tokens=20, max_num_seqs=3)
    runner: Any = create_runner(plan, lambda phase, share: None)
    context: AttentionContext = runner._attention_context(plan.geometry.groups[0])
    assert (context.max_tokens, context.max_requests) == (64, 4)
    runner.close()


@pytest.mark.parametrize("mixed", [True, False])
@settings(max_examples=60, deadline=None)
@given(
    token_buckets=st.lists(st.integers(1, 200), max_size=4, unique=True).map(sorted).map(tuple),
    batch_buckets=st.lists(st.integers(1, 40), max_size=4, unique=True).map(sorted).map(tuple),
    max_model_len=st.integers(1, 300),
    max_num_seqs=st.integers(1, 40),
    max_tokens=st.integers(1, 200),
)
def test_warm_up_makes_the_shapes_that_a_step_can_have(
    mixed: bool,
    token_buckets: tuple[int, ...],
    batch_buckets: tuple[int, ...],
    max_model_len: int,
    max_num_seqs: int,
    max_tokens: int,
) -> None:
    max_num_seqs = min(max_num_seqs, max(batch_buckets, default=max_num_seqs))
    max_tokens = min(max_tokens, max(token_buckets, default=max_tokens))
    max_num_seqs = min(max_num_seqs, max_tokens)
    limits = RunnerLimits(max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_tokens)
    constraints = SchedulingConstraints(token_buckets=token_buckets, batch_buckets=batch_buckets, mixed_steps=mixed)
    shapes = StepShapes(constraints)
    *steps, last = warmup_steps(constraints, limits)
    warmed = set()
    present: list[int] = []
    for step in steps:
        assert step.removed == present
        present = [request.slot for request in step.added]
        assert step.slots == step.sample_rows == present == list(range(len(present)))
        assert len(present) <= max_num_seqs
        assert sum(step.counts) <= max_tokens
        assert all(len(request.token_ids) <= max_model_len for request in step.added)
        assert step.counts == sorted(step.counts)
        if not mixed:
            assert set(step.counts) == {1} or min(step.counts) > 1
        warmed.add((shapes.tokens(sum(step.counts)), shapes.rows(len(step.counts))))
    assert last.empty
    assert last.removed == present
    if not token_buckets or not batch_buckets:
        assert steps
        return
    decodes = {(shapes.tokens(rows), shapes.rows(rows)) for rows in range(1, max_num_seqs + 1)}
    assert decodes <= warmed


def test_without_buckets_nothing_is_padded() -> None:
    array = np.arange(3)
    assert pad(array, 3) is array
    shapes = StepShapes(SchedulingConstraints())
    assert not shapes.static
    assert (shapes.tokens(7), shapes.rows(5), shapes.max_rows) == (7, 5, None)
    limits = RunnerLimits(max_model_len=8, max_num_seqs=3, max_num_batched_tokens=7)
    assert shapes.padded(limits) == limits


def test_beyond_the_largest_bucket_is_an_error() -> None:
    shapes = StepShapes(NARROW)
    assert [shapes.tokens(count) for count in (1, 4, 5, 64)] == [4, 4, 16, 64]
    assert [shapes.rows(count) for count in (1, 2, 8)] == [1, 4, 8]
    with pytest.raises(InferplaneError, match="65 tokens exceed"):
        shapes.tokens(65)
    with pytest.raises(InferplaneError, match="9 requests exceed"):
        shapes.rows(9)
