"""Under load: decode flows beside long prompts, prompts share a step, shares are fair, nobody waits for ever."""

from __future__ import annotations

import pytest

from inferplane.engine.fairness import FairShares


def long_prompt(length, first):
    return [first, *(1 + i % 5 for i in range(length - 1))]


@pytest.mark.parametrize("depth", [1, 2])
def test_decode_keeps_flowing_while_32k_tokens_prefill(lab, depth):
    harness = lab.Harness(
        num_pages=12_000, memory=False, max_model_len=33_000, max_num_batched_tokens=2048, max_num_seqs=16, depth=depth
    )
    decoding = [lab.request(f"d{i}", [i + 1, 2], max_tokens=100, ignore_eos=True) for i in range(8)]
    harness.submit(*decoding)
    while any(not harness.outcomes.get(r.request_id) for r in decoding):
        harness.step()
    harness.submit(lab.request("long", long_prompt(32_000, 9), max_tokens=1))
    before = len(harness.runner.plans)
    while "long" not in harness.outcomes:
        harness.step()
    during = harness.runner.plans[before : len(harness.runner.plans)]
    assert len(during) >= 32_000 // 2048
    for plan in during[: 32_000 // 2048]:
        assert plan.counts[:8] == [1] * 8, "every running request has its row in every step"
        assert plan.num_tokens <= 2048
        assert max(plan.counts) <= 2048 - 8


def test_long_prompts_share_a_step(lab):
    harness = lab.Harness(num_pages=2000, memory=False, max_model_len=2000, max_num_batched_tokens=64, depth=1)
    harness.submit(*(lab.request(f"p{i}", long_prompt(1000, i + 1), max_tokens=1) for i in range(3)))
    for _ in range(6):
        harness.step()
    counts = sorted(harness.runner.plans[-1].counts)
    assert sum(counts) == 64
    assert counts == [21, 21, 22]


@pytest.mark.parametrize("num_long", [1, 3, 10])
def test_a_short_prompt_is_not_kept_waiting_by_long_ones(lab, num_long):
    harness = lab.Harness(
        num_pages=9000, memory=False, max_model_len=2000, max_num_batched_tokens=64, max_num_seqs=16, depth=1
    )
    harness.submit(*(lab.request(f"p{i}", long_prompt(1500, i + 1), max_tokens=1) for i in range(num_long)))
    for _ in range(8):
        harness.step()
    harness.submit(lab.request("short", [1, 2, 3], max_tokens=1))
    harness.step()
    harness.step()
    assert harness.outcomes["short"].last.finish_reason == "length"
    harness.run()
    assert len(harness.outcomes) == num_long + 1


def test_a_constant_flow_of_short_prompts_starves_no_long_one(lab):
    harness = lab.Harness(num_pages=2000, memory=False, max_model_len=2000, max_num_batched_tokens=64, depth=1)
    harness.submit(lab.request("long", long_prompt(1000, 7), max_tokens=1))
    steps = 0
    while "long" not in harness.outcomes:
        harness.submit(*(lab.request(f"s{steps}-{i}", long_prompt(16, 1 + i), max_tokens=1) for i in range(4)))
        harness.step()
        steps += 1
    assert steps <= 1 + 1000 // 32, "half of each step is the long prompt's"


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_starves_nobody_in_a_tiny_pool(lab, depth):
    """While new requests never stop coming, each ends within a bounded number of steps behind those before it."""
    harness = lab.Harness(num_pages=17, max_num_seqs=4, depth=depth, prefix_caching=False, max_num_batched_tokens=16)
    requests, finished_at, steps = [], {}, 0
    while steps < 600 or harness.engine.has_work():
        assert steps < 3000
        if steps % 12 == 0 and steps < 600:
            request = lab.request(f"r{len(requests)}", long_prompt(20, 1 + len(requests) % 7), max_tokens=25,
                                  ignore_eos=True)  # fmt: skip
            requests.append(request)
            harness.submit(request)
        harness.step()
        steps += 1
        for name, outcome in harness.outcomes.items():
            if outcome.last.finish_reason and name not in finished_at:
                finished_at[name] = steps
    assert harness.engine.stats().num_preemptions > 0
    order = [finished_at[r.request_id] for r in requests]
    assert order == sorted(order), "equal requests end in the order in which they came"
    assert all(harness.result(r.request_id) == lab.expected(r, 64) for r in requests)


def test_a_flooding_share_delays_only_itself(lab):
    harness = lab.Harness(policy="fair", max_num_seqs=1, depth=1)
    harness.submit(*(lab.request(f"flood{i}", [1, 2, 3, 4 + i], max_tokens=2, share="a") for i in range(20)))
    harness.step()
    harness.submit(*(lab.request(f"calm{i}", [2, 2, 3, 4 + i], max_tokens=2, share="b") for i in range(2)))
    harness.run()
    order = [new.request_id for plan in harness.runner.plans for new in plan.added]
    assert order.index("calm0") <= 2
    assert order.index("calm1") <= 4
    assert order[-1] == "flood19"


def test_two_busy_shares_get_the_same_number_of_tokens(lab):
    harness = lab.Harness(policy="fair", max_num_seqs=1, depth=1, memory=False)
    for i in range(40):
        harness.submit(lab.request(f"big{i}", long_prompt(30, 1 + i % 5), max_tokens=1, share="big"))
    for i in range(200):
        harness.submit(lab.request(f"small{i}", long_prompt(3, 1 + i % 5), max_tokens=1, share="small"))
    used = {"big": 0, "small": 0}
    while min(used.values()) < 300:
        harness.step()
        for plan in harness.runner.plans:
            for new in plan.added:
                used[new.request_id.rstrip("0123456789")] += len(new.token_ids)
        harness.runner.plans.clear()
    assert abs(used["big"] - used["small"]) <= 60


def test_an_idle_share_saves_nothing_up():
    shares = FairShares()
    for _ in range(10):
        shares.begin(shares.enter("busy", 100))
    late = shares.enter("late", 100)
    assert late == 900, "it starts now, not in the past"
    assert shares.enter("busy", 100) == 1000
    assert shares.enter("late", 100) == 1000


def test_generated_tokens_count_for_the_share():
    shares = FairShares()
    shares.enter("talkative", 10)
    shares.charge("talkative", 500)
    assert shares.enter("talkative", 10) == 510
    assert shares.enter("other", 10) == 0


def test_a_request_that_waits_too_long_is_given_up(lab):
    harness = lab.Harness(max_num_seqs=1, depth=1)
    harness.submit(lab.request("runs", [1, 2], max_tokens=30, ignore_eos=True, queue_timeout=1.0))
    harness.step()
    harness.submit(lab.request("late", [1, 3], max_tokens=3, queue_timeout=2.0))
    patient = lab.request("patient", [1, 4], max_tokens=3, ignore_eos=True)
    harness.submit(patient)
    assert harness.engine.stats().num_tokens_waiting == 4
    harness.now = 2.5
    harness.step()
    assert harness.outcomes["late"].last.error_code == "queue_timeout"
    assert "2.5 s" in harness.outcomes["late"].last.error
    harness.run()
    assert harness.outcomes["runs"].last.finish_reason == "length", "what has started is not waiting"
    assert harness.result("patient") == lab.expected(patient, 64)
    assert harness.engine.stats().num_tokens_waiting == 0


def test_a_paused_engine_gives_up_what_waits_too_long(lab):
    harness = lab.Harness()
    harness.engine.control("pause", {})
    harness.submit(lab.request("late", [1, 3], max_tokens=3, queue_timeout=2.0))
    assert not harness.engine.has_work()
    harness.now = 2.0
    assert harness.engine.has_work()
    harness.step()
    assert harness.outcomes["late"].last.error_code == "queue_timeout"


def test_a_preempted_request_is_not_waiting_to_start(lab):
    harness = lab.Harness(policy="priority", max_num_seqs=1, depth=1)
    low = lab.request("low", [1, 2], max_tokens=9, ignore_eos=True, priority=2, queue_timeout=1.0)
    harness.submit(low)
    harness.step()
    harness.submit(lab.request("high", [4, 4], max_tokens=4, ignore_eos=True))
    harness.step()
    harness.now = 5.0
    harness.run()
    assert harness.result("low") == lab.expected(low, 64)
    assert harness.engine.take_started() == [("client", "low"), ("client", "high")]


def test_a_prefix_that_is_published_meanwhile_lets_a_blocked_request_start(lab):
    """The second lacks pages, and fewer get free; then the first has computed what both share."""
    harness = lab.Harness(num_pages=17, max_model_len=64, max_num_batched_tokens=16, depth=1, max_num_seqs=4)
    prompt = long_prompt(48, 3)
    harness.submit(lab.request("first", prompt, max_tokens=12, ignore_eos=True))
    second = lab.request("second", [*prompt, 7], max_tokens=2, ignore_eos=True)
    harness.submit(second)
    while not harness.outcomes.get("second"):
        harness.step()
    assert len(harness.outcomes["first"].tokens) < 12, "it does not wait for the first one's end"
    harness.run()
    assert harness.result("second") == lab.expected(second, 64)


def test_an_urgent_request_that_would_not_fit_anyway_preempts_nobody(lab):
    harness = lab.Harness(policy="priority", num_pages=33, max_model_len=120, max_num_batched_tokens=120, depth=1,
                          prefix_caching=False)  # fmt: skip
    harness.submit(lab.request("even", long_prompt(100, 1), max_tokens=12, ignore_eos=True))
    harness.submit(lab.request("low", [1, 2, 3], max_tokens=9, ignore_eos=True, priority=5))
    harness.step()
    harness.step()
    harness.submit(lab.request("urgent", long_prompt(90, 2), max_tokens=2, priority=1))
    harness.step()
    assert harness.engine.stats().num_preemptions == 0
    harness.run()
    assert harness.outcomes["urgent"].last.finish_reason == "length"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
@pytest.mark.parametrize("call", ["launch", "sample", "collect"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", [0, 3])
def test_a_step_that_is_too_large_is_computed_again_in_smaller_ones(lab, error, call, depth, at):
    harness = lab.Harness(depth=depth, max_num_batched_tokens=16)
    requests = [lab.request(f"r{i}", long_prompt(12, i + 1), max_tokens=6, ignore_eos=True) for i in range(4)]
    harness.submit(*requests)
    harness.runner.failures[call, at] = error
    harness.run()
    for request in requests:
        assert harness.result(request.request_id) == lab.expected(request, 64)
    failed = 16 if at == 0 else 12
    assert all(plan.num_tokens <= failed for plan in harness.runner.plans if plan.step_id > at)


def test_steps_grow_again_after_memory_ran_out(lab):
    harness = lab.Harness(depth=1, max_num_batched_tokens=16, max_num_seqs=2)
    harness.runner.failures["launch", 0] = MemoryError()
    harness.submit(lab.request("first", long_prompt(16, 1), max_tokens=48, ignore_eos=True))
    harness.run()
    assert harness.scheduler.max_tokens == 8
    harness.submit(lab.request("second", long_prompt(16, 2), max_tokens=48, ignore_eos=True))
    harness.run()
    assert harness.scheduler.max_tokens == 16


def test_memory_that_lacks_even_for_one_token_fails_only_that_request(lab):
    harness = lab.Harness(depth=1, max_num_seqs=2)
    harness.submit(lab.request("gone", [5], max_tokens=3))
    harness.runner.failures["launch", 0] = MemoryError()
    harness.step()
    other = lab.request("other", [6, 7], max_tokens=3, ignore_eos=True)
    harness.submit(other)
    harness.run()
    assert harness.outcomes["gone"].last.error_code == "out_of_memory"
    assert harness.result("other") == lab.expected(other, 64)
