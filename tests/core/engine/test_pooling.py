"""Pooled requests: they sample nothing, end with their prompt, and give the same vector however they were computed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferplane_api.pooling import PoolingParams
from inferplane_api.step import NewRequest

COMMON = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TYPES = ("CLS", "LAST", "MEAN")


def pooled(lab, request_id, prompt, pooling_type="MEAN", **fields):
    params = PoolingParams(pooling_type=pooling_type)
    return lab.request(request_id, prompt, max_tokens=0, temperature=0.0, pooling=params, **fields)


def vector(outcome):
    assert outcome.tokens == []
    assert outcome.last.finish_reason == "stop"
    return struct.unpack(f"<{len(outcome.last.pooled) // 4}f", outcome.last.pooled)


def truth(lab, request):
    """From the definition of the model, alone and whole."""
    chain = []
    lab.extend(chain, list(request.prompt_token_ids))
    links = {position: link % 97 for position, link in enumerate(chain)}
    return pytest.approx(lab.pooled_vector(links, len(chain), request.pooling.pooling_type), rel=1e-6)


@COMMON
@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 5), max_size=18), st.sampled_from([*TYPES, None])),
        min_size=1,
        max_size=8,
    ),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.one_of(st.none(), st.integers(1, 9))), min_size=1, max_size=2),
    extra_pages=st.integers(0, 30),
    budget=st.integers(2, 40),
    seqs=st.integers(1, 5),
    depth=st.integers(1, 3),
    mixed=st.booleans(),
)
def test_vectors_depend_on_nothing_but_the_prompt(lab, prompts, sizes, extra_pages, budget, seqs, depth, mixed):
    """Beside generating requests, over shared prefixes, in chunks, preempted."""
    longest = 40
    need = sum(-(-longest // size) for size, _ in sizes)
    harness = lab.Harness(
        num_pages=1 + need + extra_pages,
        groups=sizes,
        block_size=1,
        max_model_len=longest,
        max_num_batched_tokens=budget,
        max_num_seqs=min(seqs, budget),
        depth=depth,
        constraints={"mixed_steps": mixed},
    )
    stems = ([1, 2, 3, 4, 5, 1, 2, 3], [5, 4, 3], [2])
    requests = {}
    for number, (stem, tail, kind) in enumerate(prompts):
        prompt, name = stems[stem] + tail, f"r{number}"
        generating = lab.request(name, prompt, max_tokens=6, ignore_eos=True)
        requests[name] = generating if kind is None else pooled(lab, name, prompt, kind)
        harness.submit(requests[name])
        harness.step()
    harness.run()
    for name, request in requests.items():
        if request.pooling is None:
            assert harness.result(name) == lab.expected(request, longest)
            continue
        assert vector(harness.outcomes[name]) == truth(lab, request)
        if request.pooling.pooling_type != "LAST":
            assert harness.outcomes[name].last.num_cached_tokens == 0
    assert all(plan.sample_rows == [] for plan in harness.runner.plans) or any(
        request.pooling is None for request in requests.values()
    )


@pytest.mark.parametrize(("kind", "cached"), [("LAST", 16), ("MEAN", 0), ("CLS", 0)])
def test_only_the_last_position_reads_cached_pages_and_all_leave_theirs(lab, kind, cached):
    harness = lab.Harness(max_num_batched_tokens=32, num_pages=40)
    prompt = [1 + i % 5 for i in range(18)]
    harness.submit(pooled(lab, "first", prompt, "MEAN"))
    harness.run()
    harness.submit(pooled(lab, "second", prompt, kind))
    harness.run()
    assert harness.outcomes["second"].last.num_cached_tokens == cached
    assert harness.runner.plans[-1].starts == [cached]
    assert vector(harness.outcomes["second"]) == truth(lab, pooled(lab, "", prompt, kind))
    assert harness.engine.stats().prompt_tokens == 36
    assert harness.engine.stats().generation_tokens == 0


def test_the_runner_is_told_how_to_pool(lab):
    harness = lab.Harness()
    harness.submit(pooled(lab, "r", [1, 2, 3], "CLS"))
    harness.run()
    (added,) = harness.runner.plans[0].added
    assert isinstance(added, NewRequest)
    assert added.pooling == PoolingParams(pooling_type="CLS")


class TestEncoder:
    """A model without KV groups: no pages at all, and no prompt in pieces."""

    @staticmethod
    def make(lab, **plan):
        features = frozenset({"no_chunking", "no_prefix_cache"})
        return lab.Harness(num_pages=1, groups=[], features=features, max_model_len=16, **plan)

    def test_many_short_prompts_are_one_step(self, lab):
        harness = self.make(lab, max_num_batched_tokens=32, max_num_seqs=8)
        lengths = (3, 9, 1, 5, 16, 2)
        for number, length in enumerate(lengths):
            harness.submit(pooled(lab, f"r{number}", list(range(1, length + 1))))
        harness.run()
        assert [sorted(plan.counts) for plan in harness.runner.plans] == [[1, 3, 5, 9], [2, 16]]
        assert all(plan.page_ids == [] and set(plan.starts) == {0} for plan in harness.runner.plans)
        for number, length in enumerate(lengths):
            request = pooled(lab, "", list(range(1, length + 1)))
            assert vector(harness.outcomes[f"r{number}"]) == truth(lab, request)

    def test_a_prompt_as_long_as_the_context_is_taken_and_a_longer_one_is_not(self, lab):
        harness = self.make(lab, max_num_batched_tokens=16)
        harness.submit(pooled(lab, "fits", [1] * 16), pooled(lab, "long", [1] * 17))
        harness.run()
        assert harness.outcomes["fits"].last.finish_reason == "stop"
        last = harness.outcomes["long"].last
        assert (last.finish_reason, last.error_code) == ("error", "refused")
        assert "17 tokens" in last.error
        assert "16" in last.error

    def test_the_capacity_has_no_cache(self, lab):
        capacity = self.make(lab, max_num_batched_tokens=16).engine.capacity
        assert (capacity.max_model_len, capacity.kv_tokens, capacity.num_pages) == (16, 0, 1)


def test_a_runner_that_pools_nothing_is_found_out(lab):
    harness = lab.Harness()
    harness.runner.pools = False
    harness.submit(pooled(lab, "r", [1, 2, 3]))
    harness.run()
    assert harness.outcomes["r"].last.error == "the platform's runner pools no prompts"


def test_a_vector_that_is_not_finite_is_an_error_and_leaves_no_pages_behind(lab):
    harness = lab.Harness(num_pages=40)
    harness.runner.broken = {"bad"}
    harness.submit(pooled(lab, "bad", [1] * 12), pooled(lab, "good", [2] * 12))
    harness.run()
    last = harness.outcomes["bad"].last
    assert (last.finish_reason, last.error_code) == ("error", "corrupted")
    assert vector(harness.outcomes["good"])
    assert harness.engine.stats().corrupted_requests == 1
    harness.submit(pooled(lab, "again", [1] * 12, "LAST"))
    harness.run()
    assert harness.outcomes["again"].last.num_cached_tokens == 0


def test_a_step_that_ran_out_of_memory_is_computed_again_in_pieces(lab):
    harness = lab.Harness(max_num_batched_tokens=32, depth=1)
    harness.runner.failures["launch", 0] = MemoryError()
    request = pooled(lab, "r", [1 + i % 5 for i in range(30)])
    harness.submit(request)
    harness.run()
    assert [plan.counts for plan in harness.runner.plans] == [[15], [15]]
    assert vector(harness.outcomes["r"]) == truth(lab, request)


def test_an_aborted_prompt_gives_no_vector(lab):
    harness = lab.Harness(max_num_batched_tokens=4)
    harness.submit(pooled(lab, "r", [1] * 30))
    harness.step()
    harness.engine.abort("client", ["r"])
    harness.run()
    assert harness.outcomes["r"].last.finish_reason == "abort"
    assert harness.outcomes["r"].last.pooled is None
