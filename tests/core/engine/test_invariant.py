"""hit = miss = chunked = preempted = batched = alone, over random prompts, geometries, limits and aborts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMMON = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def geometries(draw):
    block = draw(st.sampled_from([1, 2, 4]))
    sizes = st.integers(1, 4).map(lambda n: n * block)
    windows = st.one_of(st.none(), st.integers(1, 13))
    return block, draw(st.lists(st.tuples(sizes, windows), min_size=1, max_size=3))


@st.composite
def workloads(draw):
    """Prompts that share beginnings, and when each arrives."""
    stems = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=20), min_size=1, max_size=3))
    items = []
    for i in range(draw(st.integers(1, 7))):
        prompt = draw(st.sampled_from(stems)) + draw(st.lists(st.integers(1, 5), max_size=12))
        fields = {
            "max_tokens": draw(st.integers(1, 24)),
            "ignore_eos": draw(st.booleans()),
            "stop_token_ids": draw(st.sampled_from([(), (7,), (3, 4)])),
            "priority": draw(st.integers(-1, 1)),
            "cache_salt": draw(st.sampled_from(["", "", "a"])),
        }
        fields["min_tokens"] = draw(st.integers(0, fields["max_tokens"]))
        if draw(st.integers(0, 4)) == 0:
            fields["prompt_logprobs"] = 0
        items.append((draw(st.integers(0, 12)), f"r{i}", prompt, fields))
    return sorted(items, key=lambda item: item[0])


@COMMON
@given(
    geometry=geometries(),
    workload=workloads(),
    aborts=st.dictionaries(st.integers(0, 6), st.integers(0, 20), max_size=2),
    extra_pages=st.integers(0, 40),
    budget=st.integers(1, 40),
    seqs=st.integers(1, 6),
    depth=st.integers(1, 3),
    policy=st.sampled_from(["fcfs", "priority"]),
    mixed=st.booleans(),
    max_chunk=st.sampled_from([None, 1, 3, 8]),
    partials=st.integers(1, 3),
    caching=st.booleans(),
)
def test_outputs_do_not_depend_on_company_or_limits(
    lab, geometry, workload, aborts, extra_pages, budget, seqs, depth, policy, mixed, max_chunk, partials, caching
):
    block, groups = geometry
    longest = 56
    need = sum(
        min(-(-longest // size), longest if window is None else -(-(window - 1) // size) + 1) for size, window in groups
    )
    harness = lab.Harness(
        num_pages=1 + need + extra_pages,
        groups=groups,
        block_size=block,
        max_model_len=longest,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        depth=depth,
        policy=policy,
        constraints={"mixed_steps": mixed, "max_chunk": max_chunk},
        max_num_partial_prefills=partials,
        prefix_caching=caching,
    )
    requests = {}
    pending = list(workload)
    for step in range(3000):
        while pending and pending[0][0] <= step:
            _, name, prompt, fields = pending.pop(0)
            requests[name] = lab.request(name, prompt, **fields)
            harness.submit(requests[name])
        for number, at in aborts.items():
            if at == step:
                harness.engine.abort("client", [f"r{number}"])
        if not pending and not harness.engine.has_work():
            break
        harness.step()
    harness.check_idle()
    for name, request in requests.items():
        tokens, reason, stop_reason = harness.result(name)
        want = lab.expected(request, longest)
        if reason == "abort":
            assert tokens == want[0][: len(tokens)]
        else:
            assert (tokens, reason, stop_reason) == want
        _check_prompt_logprobs(harness.outcomes[name], request, reason)


def _check_prompt_logprobs(outcome, request, reason):
    carriers = [d for d in outcome.deltas if d.prompt_logprobs is not None]
    if request.params.prompt_logprobs is None or reason == "abort":
        assert len(carriers) <= (request.params.prompt_logprobs is not None)
        return
    assert carriers == outcome.deltas[:1]
    entries = carriers[0].prompt_logprobs
    assert entries[0] is None
    assert [entry.token_id for entry in entries[1:]] == request.prompt_token_ids[1:]
    assert carriers[0].num_cached_tokens == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("groups", [[(4, None)], [(4, None), (8, 6)], [(4, 5)], [(4, None), (12, 17), (4, 3)]])
def test_a_tiny_pool_preempts_and_changes_nothing(lab, depth, groups):
    harness = lab.Harness(num_pages=28, groups=groups, max_model_len=48, depth=depth, policy="fcfs")
    requests = [lab.request(f"r{i}", [1 + i % 3, 2, 3, 4, 5, 1, 2], max_tokens=30, ignore_eos=True) for i in range(8)]
    harness.submit(*requests)
    harness.run()
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 48) for r in requests]
    if (4, None) in groups and len(groups) > 1:
        assert harness.engine.stats().num_preemptions > 0
