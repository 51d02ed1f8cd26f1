"""What a step holds: decode first, budget, partial prefills, priorities, device constraints, sliding windows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inferplane.metrics.names import STEP_TOKENS

PROMPT = [1, 2, 3, 4, 5, 6]


def long_prompt(length, first=1):
    return [first, *(1 + i % 5 for i in range(length - 1))]


def starts(plan):
    return list(zip(plan.starts, plan.counts, strict=True))


def test_decode_rows_come_first_and_a_long_prompt_takes_what_is_left(lab):
    harness = lab.Harness(max_num_batched_tokens=8, max_model_len=64, depth=1)
    harness.submit(lab.request("short", [1, 2], max_tokens=12, ignore_eos=True))
    harness.step()
    harness.submit(lab.request("long", long_prompt(30, first=3), max_tokens=2))
    for _ in range(5):
        harness.step()
    plans = harness.runner.plans[1:]
    assert [plan.counts for plan in plans] == [[1, 7], [1, 7], [1, 7], [1, 7], [1, 2]]
    assert [plan.sample_rows for plan in plans] == [[0], [0], [0], [0], [0, 1]]
    assert len(harness.outcomes["short"].tokens) == 6, "one token a step, whatever else runs"


def test_a_chunk_limit_leaves_room_for_others(lab):
    harness = lab.Harness(
        max_num_batched_tokens=16, long_prefill_token_threshold=4, max_num_partial_prefills=2, depth=1
    )
    harness.submit(
        lab.request("a", long_prompt(12, 1), max_tokens=1), lab.request("b", long_prompt(10, 2), max_tokens=1)
    )
    harness.step()
    assert harness.runner.plans[0].counts == [4, 4]


def test_only_so_many_prompts_are_computed_in_part(lab):
    harness = lab.Harness(max_num_batched_tokens=8, max_num_partial_prefills=1, depth=1, max_num_seqs=4)
    for i in range(3):
        harness.submit(lab.request(f"r{i}", long_prompt(12, i + 1), max_tokens=2, ignore_eos=True))
    partial = set()
    while harness.engine.has_work():
        harness.step()
        partial.add(len(harness.scheduler.running.prefilling))
    assert partial == {0, 1}


def test_a_short_prompt_that_fits_whole_is_not_partial(lab):
    harness = lab.Harness(max_num_batched_tokens=8, long_prefill_token_threshold=4, max_num_partial_prefills=1, depth=1)
    harness.submit(lab.request("long", long_prompt(12), max_tokens=1), lab.request("short", [3, 3, 3], max_tokens=1))
    harness.step()
    assert harness.runner.plans[0].counts == [4, 3]


def test_slots_limit_the_number_of_running_requests(lab):
    harness = lab.Harness(max_num_seqs=3, depth=2)
    requests = [lab.request(f"r{i}", [1, 2, 3 + i], max_tokens=5, ignore_eos=True) for i in range(9)]
    harness.submit(*requests)
    harness.run()
    assert max(len(plan.slots) for plan in harness.runner.plans) == 3
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 64) for r in requests]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_row_is_planned_beyond_the_known_end(lab, depth):
    harness = lab.Harness(depth=depth)
    harness.submit(lab.request("r", PROMPT, max_tokens=5, ignore_eos=True))
    harness.run()
    assert sum(plan.num_tokens for plan in harness.runner.plans) == len(PROMPT) + 4


def test_a_row_behind_an_unforeseen_end_is_dropped(lab):
    harness = lab.Harness(depth=2)
    request = lab.request("r", PROMPT, max_tokens=50)
    stop = lab.expected(lab.request("r", PROMPT, max_tokens=50, ignore_eos=True), 64)[0][3]
    request = lab.request("r", PROMPT, max_tokens=50, ignore_eos=True, stop_token_ids=(stop,))
    harness.submit(request)
    harness.run()
    assert harness.result("r") == lab.expected(request, 64)
    used = len(harness.outcomes["r"].tokens)
    assert sum(plan.num_tokens for plan in harness.runner.plans) == len(PROMPT) + used


def test_priority_runs_lower_numbers_first(lab):
    harness = lab.Harness(policy="priority", max_num_seqs=1, depth=1)
    for i, priority in enumerate([1, 5, -3, 1]):
        harness.submit(lab.request(f"r{i}", [1, 2, 3 + i], max_tokens=2, ignore_eos=True, priority=priority))
    harness.run()
    order = [new.request_id for plan in harness.runner.plans for new in plan.added]
    assert order == ["r2", "r0", "r3", "r1"]


def test_priority_preempts_the_lowest(lab):
    harness = lab.Harness(policy="priority", max_num_seqs=2, depth=2)
    low = [lab.request(f"low{i}", [1, 2, 3 + i], max_tokens=20, ignore_eos=True, priority=i) for i in (1, 2)]
    harness.submit(*low)
    for _ in range(4):
        harness.step()
    urgent = lab.request("urgent", [4, 4, 4], max_tokens=3, ignore_eos=True, priority=0)
    harness.submit(urgent)
    harness.step()
    running = {state.request_id for state in harness.scheduler.running}
    assert running == {"low1", "urgent"}
    harness.run()
    assert harness.engine.stats().num_preemptions == 1
    for request in (*low, urgent):
        assert harness.result(request.request_id) == lab.expected(request, 64)
    finished = [name for name, outcome in harness.outcomes.items() if outcome.last.finish_reason]
    assert set(finished) == {"low1", "low2", "urgent"}


def test_an_urgent_prompt_overtakes_a_long_one_in_progress(lab):
    harness = lab.Harness(policy="priority", max_num_batched_tokens=8, depth=1)
    harness.submit(lab.request("long", long_prompt(40), max_tokens=1, priority=3))
    harness.step()
    harness.submit(lab.request("urgent", long_prompt(12, 4), max_tokens=1, priority=0))
    harness.step()
    assert [new.request_id for new in harness.runner.plans[1].added] == ["urgent"]
    assert harness.runner.plans[1].counts == [8]
    harness.run()
    assert len(harness.outcomes) == 2


def test_an_urgent_request_takes_the_last_pages(lab):
    """No page is kept back for requests that go behind it."""
    harness = lab.Harness(
        policy="priority", num_pages=201, max_model_len=800, max_num_batched_tokens=800, depth=1, prefix_caching=False
    )
    harness.submit(lab.request("low", long_prompt(4 * 190 - 2), max_tokens=9, ignore_eos=True, priority=1))
    harness.step()
    assert harness.scheduler.pool.num_free == 10
    urgent = lab.request("urgent", long_prompt(40, 2), max_tokens=1)
    harness.submit(urgent)
    harness.step()
    assert harness.result("urgent") == lab.expected(urgent, 800)
    assert harness.engine.stats().num_preemptions == 0


def test_a_later_request_leaves_pages_to_those_before_it(lab):
    harness = lab.Harness(num_pages=201, max_model_len=800, max_num_batched_tokens=800, depth=1, prefix_caching=False)
    harness.submit(lab.request("first", long_prompt(4 * 190 - 2), max_tokens=3, ignore_eos=True))
    harness.step()
    harness.submit(lab.request("second", long_prompt(40, 2), max_tokens=1))
    harness.step()
    assert "second" not in harness.outcomes
    harness.run()
    assert harness.engine.stats().num_preemptions == 0


def test_fcfs_ignores_priorities(lab):
    harness = lab.Harness(max_num_seqs=1, depth=1)
    harness.submit(lab.request("a", [1, 2], max_tokens=1), lab.request("b", [2, 2], max_tokens=1, priority=-5))
    harness.run()
    assert list(harness.outcomes) == ["a", "b"]


def test_without_mixed_steps_rows_are_of_one_kind(lab):
    harness = lab.Harness(constraints={"mixed_steps": False}, max_num_batched_tokens=9, depth=2)
    requests = [lab.request(f"r{i}", long_prompt(6 + 7 * i, i), max_tokens=9, ignore_eos=True) for i in range(4)]
    harness.submit(*requests)
    harness.run()
    assert all(len({count > 1 for count in plan.counts}) == 1 for plan in harness.runner.plans)
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 64) for r in requests]


def test_decode_is_not_starved_without_mixed_steps(lab):
    harness = lab.Harness(constraints={"mixed_steps": False}, max_num_batched_tokens=4, depth=1)
    harness.submit(lab.request("short", [1, 2], max_tokens=20, ignore_eos=True))
    harness.step()
    harness.submit(lab.request("long", long_prompt(32), max_tokens=1))
    for _ in range(8):
        harness.step()
    assert [plan.counts[0] == 1 for plan in harness.runner.plans[1:]] == [True, False] * 4


@pytest.mark.parametrize(
    ("constraints", "field", "most"),
    [
        ({"max_chunk": 5}, "chunk", 5),
        ({"max_batched_tokens": 6}, "tokens", 6),
        ({"token_buckets": (4, 7)}, "tokens", 7),
        ({"max_sequences": 2}, "rows", 2),
        ({"batch_buckets": (1, 2, 3)}, "rows", 3),
    ],
)
def test_device_constraints_are_kept(lab, constraints, field, most):
    harness = lab.Harness(constraints=constraints, depth=2)
    requests = [lab.request(f"r{i}", long_prompt(17, i), max_tokens=8, ignore_eos=True) for i in range(6)]
    harness.submit(*requests)
    harness.run()
    measured = {
        "chunk": max(max(plan.counts) for plan in harness.runner.plans),
        "tokens": max(plan.num_tokens for plan in harness.runner.plans),
        "rows": max(len(plan.slots) for plan in harness.runner.plans),
    }
    assert measured[field] == most
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 64) for r in requests]


def test_a_model_without_chunking_takes_prompts_whole(lab):
    harness = lab.Harness(features=frozenset({"no_chunking"}), max_num_batched_tokens=16, max_model_len=16)
    requests = [lab.request(f"r{i}", long_prompt(9 + i, i), max_tokens=3, ignore_eos=True) for i in range(4)]
    harness.submit(*requests, lab.request("ok", long_prompt(14, 7), max_tokens=2))
    harness.run()
    for plan in harness.runner.plans:
        assert all(count == 1 or count >= 9 for count in plan.counts)
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 16) for r in requests]


def test_a_prompt_that_cannot_be_cut_and_exceeds_a_step_is_refused(lab):
    harness = lab.Harness(features=frozenset({"no_chunking"}), max_num_batched_tokens=8)
    harness.submit(lab.request("r", long_prompt(9), max_tokens=1))
    harness.run()
    assert "in one piece" in harness.outcomes["r"].last.error


def test_a_sliding_window_gives_pages_back(lab):
    """A context far longer than the pool holds at once, because the window moves on."""
    harness = lab.Harness(groups=[(4, 9)], num_pages=6, max_model_len=64, depth=2, max_num_batched_tokens=16)
    request = lab.request("r", long_prompt(30), max_tokens=30, ignore_eos=True)
    harness.submit(request)
    most = 0
    while harness.engine.has_work():
        harness.step()
        most = max(most, harness.scheduler.pool.num_pages - 1 - harness.scheduler.pool.num_free)
    assert most <= 5
    assert harness.result("r") == lab.expected(request, 64)
    plans = harness.runner.plans
    assert [0 in plan.page_ids for plan in plans].count(True) > 5, "entries that left the window are nulled"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_pages_in_quarantine_are_waited_for_instead_of_preempting(lab, depth):
    """Exactly the pages that two requests need, if those that left a window are used again."""
    harness = lab.Harness(groups=[(4, None), (4, 5)], num_pages=1 + 2 * (6 + 2), max_model_len=24, depth=depth)
    requests = [lab.request(f"r{i}", long_prompt(5, i), max_tokens=19, ignore_eos=True) for i in range(2)]
    harness.submit(*requests)
    harness.run()
    assert harness.engine.stats().num_preemptions == 0
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 24) for r in requests]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_chunk_waits_for_quarantine_rather_than_shrinks(lab, depth):
    harness = lab.Harness(groups=[(4, 5)], num_pages=4, max_num_batched_tokens=8, depth=depth)
    harness.submit(lab.request("r", long_prompt(24), max_tokens=1))
    harness.run()
    assert [plan.counts for plan in harness.runner.plans] == [[8], [8], [8]]


def test_an_urgent_request_waits_for_quarantine_rather_than_preempts(lab):
    harness = lab.Harness(policy="priority", num_pages=1 + 8, max_model_len=32, depth=2, prefix_caching=False)
    harness.submit(lab.request("done", long_prompt(12), max_tokens=3, ignore_eos=True))
    low = lab.request("low", long_prompt(12, 2), max_tokens=3, ignore_eos=True, priority=1)
    harness.submit(low)
    harness.step()
    harness.engine.abort("client", ["done"])
    assert (harness.scheduler.pool.num_free, harness.scheduler.pool.num_quarantined) == (2, 3)
    urgent = lab.request("urgent", long_prompt(15, 3), max_tokens=1)
    harness.submit(urgent)
    harness.run()
    assert harness.engine.stats().num_preemptions == 0
    for request in (low, urgent):
        assert harness.result(request.request_id) == lab.expected(request, 32)


def test_the_youngest_is_preempted_and_resumes_with_what_it_knows(lab):
    harness = lab.Harness(num_pages=1 + 8, max_model_len=32, depth=2)
    requests = [lab.request(f"r{i}", [i + 1, 2, 3, 4], max_tokens=20, ignore_eos=True) for i in range(2)]
    harness.submit(*requests)
    harness.run()
    added = [new for plan in harness.runner.plans for new in plan.added]
    assert [new.request_id for new in added[:2]] == ["r0", "r1"]
    assert {new.request_id for new in added[2:]} == {"r1"}
    resumed = added[-1]
    assert resumed.num_prompt_tokens == 4
    full = [*requests[1].prompt_token_ids, *harness.outcomes["r1"].tokens]
    assert resumed.token_ids == full[: len(resumed.token_ids)]
    assert len(resumed.token_ids) > 4
    assert harness.engine.stats().num_preemptions == len(added) - 2
    assert [harness.result(r.request_id) for r in requests] == [lab.expected(r, 32) for r in requests]


def test_statistics_count(lab):
    harness = lab.Harness(depth=1)
    prompt = long_prompt(9)
    harness.submit(lab.request("a", prompt, max_tokens=3, ignore_eos=True))
    harness.step()
    stats = harness.engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (1, 0)
    assert stats.kv_cache_usage == pytest.approx(3 / 64)
    harness.run()
    harness.submit(lab.request("b", prompt, max_tokens=2, ignore_eos=True))
    harness.run()
    stats = harness.engine.stats()
    assert stats.prompt_tokens == 18
    assert stats.generation_tokens == 5
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (18, 8)
    assert stats.num_steps == len(harness.runner.plans) == harness.engine.steps_completed
    assert harness.engine.control("stats", {})["generation_tokens"] == 5
    sizes = [plan.num_tokens for plan in harness.runner.plans]
    assert stats.step_tokens_sum == sum(sizes)
    bounds = [0, *STEP_TOKENS, float("inf")]
    wanted = [sum(low < size <= high for size in sizes) for low, high in pairwise(bounds)]
    assert stats.step_tokens == wanted


def test_the_age_of_the_oldest_waiting_request(lab):
    harness = lab.Harness(depth=1, max_num_seqs=1)

    def age():
        return harness.engine.stats().oldest_waiting_seconds

    assert age() == 0
    harness.submit(lab.request("a", long_prompt(4), max_tokens=3, ignore_eos=True))
    harness.step()
    harness.now += 5
    assert age() == 0, "it runs"
    harness.submit(lab.request("b", long_prompt(4), max_tokens=3))
    harness.now += 2
    harness.submit(lab.request("c", long_prompt(4), max_tokens=3))
    harness.now += 1
    assert age() == 3
    (client_id,) = {owner for owner, _ in harness.scheduler._requests}
    harness.engine.abort(client_id, ["b"])
    assert age() == 1
    harness.run()
    assert age() == 0


def test_a_client_that_is_gone_leaves_nothing(lab):
    harness = lab.Harness(depth=1)
    for name in ("a", "b"):
        harness.submit(lab.request(name, long_prompt(9), max_tokens=30, ignore_eos=True))
    harness.step()
    (client_id,) = {owner for owner, _ in harness.scheduler._requests}
    harness.engine.abort_client("somebody else")
    assert harness.scheduler.num_requests == 2
    harness.engine.abort_client(client_id)
    assert harness.scheduler.num_requests == 0
    harness.run()
    assert harness.engine.stats().kv_cache_usage == 0
