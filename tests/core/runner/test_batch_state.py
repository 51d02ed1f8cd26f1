"""The tensors of a step against a model of the state that is a dictionary of lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.runner.batch_state import BatchState
from inferplane_api.kv import KVGeometry, KVGroupSpec
from inferplane_api.runner import RunnerLimits
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import NewRequest, StepPlan

SLOTS, LENGTH, SIZES = 4, 24, (4, 3)
LIMITS = RunnerLimits(max_model_len=LENGTH, max_num_seqs=SLOTS, max_num_batched_tokens=64)
GEOMETRY = KVGeometry(
    page_bytes=1,
    groups=tuple(
        KVGroupSpec(
            index=i, kind="full", layers=(i,), tokens_per_page=size, num_heads=1, num_kv_heads=1, head_size=1,
            dtype="float32",
        )
        for i, size in enumerate(SIZES)
    ),
    block_size=1,
)  # fmt: skip


class Model:
    """What a slot holds, in plain lists."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.host = len(tokens)
        self.computed = 0
        self.pages: list[list[int]] = [[] for _ in SIZES]


def arrivals(data: Any, models: dict[int, Model]) -> list[NewRequest]:
    added = []
    for slot in range(SLOTS):
        if slot not in models and data.draw(st.booleans()):
            tokens = [slot * 100 + i for i in range(data.draw(st.integers(1, 9)))]
            models[slot] = Model(tokens)
            params = SamplingParams()
            added.append(
                NewRequest(slot=slot, request_id="", token_ids=list(tokens), num_prompt_tokens=1, params=params, seed=0)
            )
    return added


def choose_rows(data: Any, models: dict[int, Model], next_page: int) -> tuple[list[Any], list[Any], int]:
    rows, columns = [], []
    for slot in data.draw(st.permutations(list(models))):
        model = models[slot]
        pending = len(model.tokens) - model.computed
        if pending == 0 or len(model.tokens) >= LENGTH:
            continue
        count = data.draw(st.integers(1, pending))
        for group, size in enumerate(SIZES):
            while len(model.pages[group]) * size < model.computed + count:
                columns.append((slot, group, len(model.pages[group]), next_page))
                model.pages[group].append(next_page)
                next_page += 1
        rows.append((slot, model.computed, count))
    rows.sort(key=lambda row: row[2] != 1)
    return rows, columns, next_page


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_step_is_what_the_slots_hold(data: Any) -> None:
    state, last = BatchState(LIMITS, GEOMETRY, torch.device("cpu")), torch.zeros(SLOTS, dtype=torch.int64)
    models: dict[int, Model] = {}
    next_page, next_token = 1, 1000
    unread: list[tuple[Any, ...]] = []
    for step_id in range(data.draw(st.integers(1, 12))):
        removed = [slot for slot in list(models) if data.draw(st.integers(0, 5)) == 0]
        for slot in removed:
            del models[slot]
        added = arrivals(data, models)
        rows, columns, next_page = choose_rows(data, models, next_page)
        plan = StepPlan(
            step_id=step_id, removed=removed, added=added,
            page_slots=[c[0] for c in columns], page_groups=[c[1] for c in columns],
            page_indices=[c[2] for c in columns], page_ids=[c[3] for c in columns],
            slots=[r[0] for r in rows], starts=[r[1] for r in rows], counts=[r[2] for r in rows],
        )  # fmt: skip
        state.apply(plan)
        if not plan.empty:
            check(state.build(plan, last), rows, models)
        # sample the rows that reached their end; the host may learn of it at once or a step later
        for slot, start, count in rows:
            model = models[slot]
            model.computed = start + count
            if model.computed == len(model.tokens):
                model.tokens.append(next_token)
                last[slot] = next_token
                unread.append((slot, model.computed, state.generation[slot], next_token))
                next_token += 1
        if unread and data.draw(st.booleans()):
            state.record(*(np.array(column) for column in zip(*unread, strict=True)))
            unread = []


def check(step: Any, rows: list[tuple[int, int, int]], models: dict[int, Model]) -> None:
    ids = [models[slot].tokens[i] for slot, start, count in rows for i in range(start, start + count)]
    positions = [i for _, start, count in rows for i in range(start, start + count)]
    assert step.input_ids.tolist() == ids
    assert step.positions.tolist() == positions
    ends = np.cumsum([0, *(count for *_, count in rows)]).tolist()
    lengths = [start + count for _, start, count in rows]
    for group, (batch, size) in enumerate(zip(step.attention, SIZES, strict=True)):
        assert batch.query_start.tolist() == batch.query_start_host.tolist() == ends
        assert batch.seq_lens.tolist() == batch.seq_lens_host.tolist() == lengths
        assert (batch.max_seq_len, batch.max_query_len) == (max(lengths), max(count for *_, count in rows))
        assert batch.num_decode_rows == sum(count == 1 for *_, count in rows)
        slots = [
            models[slot].pages[group][i // size] * size + i % size
            for slot, start, count in rows
            for i in range(start, start + count)
        ]
        assert batch.slot_mapping.tolist() == slots
        for (slot, start, count), table in zip(rows, batch.page_table.tolist(), strict=True):
            used = -(-(start + count) // size)
            assert table[:used] == models[slot].pages[group][:used]
            assert not any(table[len(models[slot].pages[group]) :]), "entries beyond a row's pages are the null page"


def test_a_late_result_is_not_credited_to_the_slots_next_request() -> None:
    state = BatchState(LIMITS, GEOMETRY, torch.device("cpu"))
    params = SamplingParams()
    first = NewRequest(slot=1, request_id="a", token_ids=[5, 6], num_prompt_tokens=2, params=params, seed=0)
    second = NewRequest(slot=1, request_id="b", token_ids=[7, 8], num_prompt_tokens=2, params=params, seed=0)
    state.apply(StepPlan(step_id=0, added=[first]))
    late = (np.array([1]), np.array([2]), state.generation[[1]], np.array([99]))
    state.apply(StepPlan(step_id=1, removed=[1], added=[second]))
    state.record(*late)
    assert state.num_known[1] == 2
    assert 99 not in state.token_ids[1]


def test_tokens_that_the_host_lacks_come_from_the_device() -> None:
    state = BatchState(LIMITS, GEOMETRY, torch.device("cpu"))
    requests = [
        NewRequest(slot=slot, request_id="", token_ids=[slot] * 3, num_prompt_tokens=3, params=SamplingParams(), seed=0)
        for slot in (0, 2)
    ]
    state.apply(StepPlan(step_id=0, added=requests))
    plan = StepPlan(step_id=1, slots=[2, 0], starts=[3, 0], counts=[1, 3])
    assert state.build(plan, torch.tensor([50, 51, 52, 53])).input_ids.tolist() == [52, 0, 0, 0]
