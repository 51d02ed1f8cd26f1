"""Vectors against numpy in float64, whatever chunks the hidden states came in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.runner.batch_state import Step
from inferplane.runner.pooler import Pooler, read_vectors
from inferplane_api.pooling import PoolingParams
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import NewRequest

HIDDEN = 6


def new(slot: int, num_prompt: int, pooling: PoolingParams | None) -> NewRequest:
    params = SamplingParams(max_tokens=0)
    ids = [0] * num_prompt
    return NewRequest(
        slot=slot, request_id="", token_ids=ids, num_prompt_tokens=num_prompt, params=params, seed=0, pooling=pooling
    )


def step(rows: list[tuple[int, int, int]]) -> Step:
    """Rows of (slot, start, count)."""
    slots, starts, counts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    query_start = np.concatenate(([0], np.cumsum(counts)))
    nothing = torch.empty(0)
    return Step(
        input_ids=nothing,
        positions=nothing,
        attention=(),
        query_start=query_start,
        slots=slots,
        starts=starts,
        counts=counts,
    )


def truth(states: np.ndarray[Any, Any], params: PoolingParams) -> np.ndarray[Any, Any]:
    wide = states.astype(np.float64)
    vector = {"CLS": wide[0], "LAST": wide[-1], "MEAN": wide.mean(0)}[params.pooling_type]
    vector = vector[: params.dimensions]
    return vector / max(np.linalg.norm(vector), 1e-12) if params.normalize else vector


pooling = st.builds(
    PoolingParams,
    pooling_type=st.sampled_from(["CLS", "LAST", "MEAN"]),
    normalize=st.booleans(),
    dimensions=st.sampled_from([None, 1, 4, HIDDEN, HIDDEN + 1]),
)


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 9), st.one_of(st.none(), pooling)), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_chunks_beside_any_neighbours(requests: Any, dtype: torch.dtype, seed: int) -> None:
    """A preempted request begins again, in the same slot or another; what it left there counts for nothing."""
    generator, random = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    states = [torch.randn(length, HIDDEN, generator=generator).to(dtype) for length, _ in requests]
    pooler = Pooler()
    done = [0] * len(requests)
    preempted = [False] * len(requests)
    for slot, (length, params) in enumerate(requests):
        pooler.add(new(slot, length, params))
    found: dict[int, list[float]] = {}
    while any(count < length for count, (length, _) in zip(done, requests, strict=True)):
        rows = []
        for slot, (length, params) in enumerate(requests):
            if 0 < done[slot] < length and not preempted[slot] and random.random() < 0.5:
                preempted[slot], done[slot] = True, 0
                pooler.remove(slot)
                pooler.add(new(slot, length, params))
            if (count := int(random.integers(0, length - done[slot] + 1))) > 0:
                rows.append((slot, done[slot], count))
                done[slot] += count
        if not rows:
            continue
        # The model's output is overwritten by its next step, as a captured one's is.
        buffer = torch.cat([states[slot][start : start + count] for slot, start, count in rows])
        pooled = pooler.pool(step(rows), buffer)
        vectors = {} if pooled is None else read_vectors(pooled)
        buffer.fill_(float("nan"))
        expected = {i for i, (slot, start, count) in enumerate(rows) if start + count == requests[slot][0]}
        assert set(vectors) == {i for i in expected if requests[rows[i][0]][1] is not None}
        found.update({rows[i][0]: vector for i, vector in vectors.items()})
    for slot, (_, params) in enumerate(requests):
        if params is not None:
            assert found[slot] == pytest.approx(truth(states[slot].double().numpy(), params), rel=1e-5, abs=1e-6)


def test_a_vector_of_zeros_stays_one() -> None:
    pooler = Pooler()
    pooler.add(new(0, 2, PoolingParams(pooling_type="MEAN")))
    pooled = pooler.pool(step([(0, 0, 2)]), torch.zeros(2, HIDDEN))
    assert pooled is not None
    assert read_vectors(pooled) == {0: [0.0] * HIDDEN}


def test_nothing_pooled_costs_nothing() -> None:
    pooler = Pooler()
    pooler.add(new(0, 2, None))
    assert pooler.pool(step([(0, 0, 2)]), torch.zeros(2, HIDDEN)) is None
