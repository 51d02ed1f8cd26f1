"""The loop: aborts at every stage, failures of the runner, corrupted rows, log-probabilities, control."""

from __future__ import annotations

import itertools

import pytest

from inferplane.errors import InferplaneError

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("steps", range(9))
def test_abort_at_every_stage(lab, depth, steps):
    """Waiting, in a prompt chunk, in flight, decoding: the others are not disturbed."""
    harness = lab.Harness(depth=depth, max_num_batched_tokens=4, max_num_seqs=2)
    other = lab.request("other", [3, 1, 2], max_tokens=6, ignore_eos=True)
    harness.submit(other, lab.request("gone", PROMPT, max_tokens=30, ignore_eos=True))
    waiting = lab.request("waiting", [5, 5], max_tokens=2, ignore_eos=True)
    harness.submit(waiting)
    for _ in range(steps):
        harness.step()
    harness.engine.abort("client", ["gone", "unknown"])
    harness.engine.abort("stranger", ["other"])
    harness.run()
    assert harness.outcomes["gone"].last.finish_reason == "abort"
    assert harness.result("other") == lab.expected(other, 64)
    assert harness.result("waiting") == lab.expected(waiting, 64)


def test_abort_of_a_preempted_request(lab):
    harness = lab.Harness(policy="priority", max_num_seqs=1)
    harness.submit(lab.request("low", PROMPT, max_tokens=20, ignore_eos=True, priority=2))
    for _ in range(4):
        harness.step()
    high = lab.request("high", [4, 4], max_tokens=4, ignore_eos=True)
    harness.submit(high)
    harness.step()
    harness.engine.abort("client", ["low"])
    harness.run()
    assert harness.outcomes["low"].last.finish_reason == "abort"
    assert harness.result("high") == lab.expected(high, 64)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_preempted_request_resumes_only_when_all_its_tokens_are_known(lab, depth):
    harness = lab.Harness(policy="priority", max_num_seqs=1, depth=depth)
    low = lab.request("low", PROMPT, max_tokens=20, ignore_eos=True, priority=2)
    harness.submit(low)
    for _ in range(5):
        harness.step()
    harness.submit(lab.request("high", [4, 4], max_tokens=4, ignore_eos=True))
    harness.step()
    harness.engine.abort("client", ["high"])
    harness.run()
    assert harness.result("low") == lab.expected(low, 64)
    assert harness.engine.stats().num_preemptions == 1


def test_many_aborted_while_waiting_leave_nothing_behind(lab):
    harness = lab.Harness(max_num_seqs=1)
    harness.submit(*(lab.request(f"r{i}", [1, 2], max_tokens=2) for i in range(500)))
    harness.step()
    harness.engine.abort("client", [f"r{i}" for i in range(1, 500)])
    assert len(harness.scheduler.waiting) == 0
    harness.run()
    assert len(harness.outcomes) == 500


def test_ids_belong_to_a_client(lab):
    harness = lab.Harness()
    harness.submit(lab.request("r", [1, 2], max_tokens=2, client_id="a", ignore_eos=True))
    harness.submit(lab.request("r", [1, 3], max_tokens=3, client_id="b", ignore_eos=True))
    tokens = {"a": 0, "b": 0}
    while harness.engine.has_work():
        for client, delta in harness.engine.step():
            tokens[client] += len(delta.token_ids)
    assert tokens == {"a": 2, "b": 3}


def test_a_second_request_with_a_running_id_is_refused(lab):
    harness = lab.Harness()
    harness.submit(lab.request("r", [1, 2], max_tokens=3), lab.request("r", [1, 2], max_tokens=3))
    (client, delta), *_ = harness.engine.step()
    assert (client, delta.finish_reason) == ("client", "error")
    assert "id" in delta.error


@pytest.mark.parametrize(
    ("prompt", "fields", "text"),
    [
        ([], {"max_tokens": 1}, "empty"),
        ([1] * 64, {"max_tokens": 1}, "context of 64"),
        ([1] * 65, {"max_tokens": 0}, "context of 64"),
    ],
)
def test_what_can_never_run_is_refused(lab, prompt, fields, text):
    harness = lab.Harness()
    harness.submit(lab.request("r", prompt, **fields))
    harness.run()
    assert harness.outcomes["r"].last.finish_reason == "error"
    assert text in harness.outcomes["r"].last.error


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("call", ["launch", "sample", "collect"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_failed_step_ends_only_its_requests(lab, depth, call, at):
    harness = lab.Harness(depth=depth, max_num_seqs=2)
    requests = [lab.request(f"r{i}", [i + 1, 2, 3, 4, 5], max_tokens=8, ignore_eos=True) for i in range(4)]
    harness.submit(*requests)
    harness.runner.failures[call, at] = RuntimeError("the device is on fire")
    harness.run()
    failed = [r for r in requests if harness.outcomes[r.request_id].last.finish_reason == "error"]
    assert [r.request_id for r in failed] == ["r0", "r1"]
    for request in failed:
        last = harness.outcomes[request.request_id].last
        assert last.error_code == "step_failed"
        assert "error id" in last.error
        assert "on fire" not in last.error, "the cause is for the log"
    for request in requests[2:]:
        assert harness.result(request.request_id) == lab.expected(request, 64)


def test_a_slot_that_a_failed_step_was_to_remove_is_removed_by_the_next(lab):
    harness = lab.Harness(depth=1, max_num_seqs=2)
    harness.submit(lab.request("short", [1, 2], max_tokens=1), lab.request("fails", [1, 3], max_tokens=5))
    harness.step()
    harness.runner.failures["launch", 1] = RuntimeError("lost before anything was applied")
    after = [lab.request(f"r{i}", [2, 2, i], max_tokens=3, ignore_eos=True) for i in range(2)]
    harness.step()
    harness.submit(*after)
    harness.run()
    assert harness.outcomes["fails"].last.finish_reason == "error"
    assert [harness.result(r.request_id) for r in after] == [lab.expected(r, 64) for r in after]


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_pages_of_a_failed_step_are_not_hit(lab, call):
    harness = lab.Harness(depth=2)
    harness.runner.failures[call, 0] = RuntimeError("lost")
    harness.submit(lab.request("first", PROMPT, max_tokens=2))
    harness.run()
    again = lab.request("second", PROMPT, max_tokens=4, ignore_eos=True)
    harness.submit(again)
    harness.run()
    assert harness.outcomes["second"].deltas[0].num_cached_tokens == 0
    assert harness.result("second") == lab.expected(again, 64)


@pytest.mark.parametrize("call", ["launch", "collect"])
def test_three_failures_in_a_row_end_the_engine_with_the_cause(lab, call):
    harness = lab.Harness(depth=1)
    for step in range(3):
        harness.runner.failures[call, step] = RuntimeError(f"failure {step}")
    harness.submit(*(lab.request(f"r{i}", [1, 2, 3 + i], max_tokens=2) for i in range(1)))
    harness.step()
    harness.submit(lab.request("second", [1, 2], max_tokens=2))
    harness.step()
    harness.submit(lab.request("third", [1, 2], max_tokens=2))
    with pytest.raises(RuntimeError, match="failure 2"):
        harness.step()


def test_a_good_step_resets_the_count_of_failures(lab):
    harness = lab.Harness(depth=1)
    for step in (0, 1, 3, 4):
        harness.runner.failures["collect", step] = RuntimeError("now and then")
    for i in range(6):
        harness.submit(lab.request(f"r{i}", [1, 2, 3 + i], max_tokens=1))
        harness.step()
    assert [outcome.last.finish_reason for outcome in harness.outcomes.values()] == [
        "error", "error", "length", "error", "error", "length",
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_corrupted_row_fails_its_request_and_drops_what_it_published(lab, depth):
    harness = lab.Harness(depth=depth)
    good = lab.request("good", [9, *PROMPT], max_tokens=12, ignore_eos=True)
    harness.submit(lab.request("bad", PROMPT, max_tokens=12, ignore_eos=True), good)
    harness.runner.corrupt.add(("bad", len(PROMPT) + 4))
    harness.run()
    assert harness.outcomes["bad"].last.error == "logits were not finite, or nothing was left to draw from"
    assert len(harness.outcomes["bad"].tokens) == 4
    assert harness.result("good") == lab.expected(good, 64)
    assert harness.engine.stats().corrupted_requests == 1
    for name, prompt, cached in (("again", PROMPT, 0), ("other", [9, *PROMPT], 8)):
        harness.submit(lab.request(name, prompt, max_tokens=1))
        harness.run()
        assert harness.outcomes[name].deltas[0].num_cached_tokens == cached


def test_scoring_a_prompt_generates_nothing(lab):
    for depth, budget in itertools.product([1, 2], [3, 32]):
        harness = lab.Harness(depth=depth, max_num_batched_tokens=budget)
        for name in ("first", "second"):
            harness.submit(lab.request(name, PROMPT, max_tokens=0, prompt_logprobs=0))
            harness.run()
            (delta,) = harness.outcomes[name].deltas
            assert (delta.token_ids, delta.finish_reason) == ([], "length")
            assert delta.prompt_logprobs[0] is None
            assert [entry.token_id for entry in delta.prompt_logprobs[1:]] == PROMPT[1:]
            assert delta.num_cached_tokens == 0
        assert not any(plan.sample_rows for plan in harness.runner.plans)


def test_prompt_log_probabilities_do_not_depend_on_chunks(lab):
    seen = set()
    for budget, depth in itertools.product([1, 3, 32], [1, 2]):
        harness = lab.Harness(max_num_batched_tokens=budget, depth=depth)
        harness.submit(lab.request("r", PROMPT, max_tokens=3, ignore_eos=True, prompt_logprobs=1))
        harness.run()
        first, *rest = harness.outcomes["r"].deltas
        assert all(delta.prompt_logprobs is None for delta in rest)
        seen.add(tuple((entry.token_id, entry.logprob) for entry in first.prompt_logprobs[1:]))
    assert len(seen) == 1


def test_a_scored_prompt_feeds_the_cache(lab):
    harness = lab.Harness()
    harness.submit(lab.request("scored", PROMPT, max_tokens=1, prompt_logprobs=0))
    harness.run()
    harness.submit(lab.request("plain", PROMPT, max_tokens=1))
    harness.run()
    assert harness.outcomes["plain"].deltas[0].num_cached_tokens == 8


def test_log_probabilities_travel_with_their_tokens(lab):
    harness = lab.Harness()
    harness.submit(lab.request("with", [1, 2, 3], max_tokens=4, logprobs=0, ignore_eos=True))
    harness.submit(lab.request("without", [1, 2, 4], max_tokens=4, ignore_eos=True))
    harness.run()
    for delta in harness.outcomes["with"].deltas:
        assert [entry.token_id for entry in delta.logprobs] == delta.token_ids
    assert all(delta.logprobs is None for delta in harness.outcomes["without"].deltas)


def test_the_first_delta_tells_of_the_queue(lab):
    harness = lab.Harness(max_num_seqs=1, depth=1)
    harness.submit(lab.request("a", [1, 2], max_tokens=2, ignore_eos=True), lab.request("b", [1, 3], max_tokens=2))
    harness.now = 1.5
    harness.step()
    harness.now = 4.0
    harness.run()
    assert harness.outcomes["a"].deltas[0].queue_seconds == 1.5
    assert harness.outcomes["b"].deltas[0].queue_seconds == 4.0
    assert harness.outcomes["a"].deltas[1].queue_seconds is None


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_as_many_steps_are_in_flight_as_the_device_wants(lab, depth):
    harness = lab.Harness(depth=depth)
    harness.submit(lab.request("r", [1, 2], max_tokens=20, ignore_eos=True))
    for step in range(1, 8):
        harness.now = float(step)
        harness.step()
        assert len(harness.runner.in_flight) == min(step, depth - 1)
        oldest = step - len(harness.runner.in_flight) + 1
        assert harness.engine.oldest_launch == (float(oldest) if depth > 1 else None)


def test_pause_holds_new_steps_and_drains(lab):
    harness = lab.Harness(depth=3)
    request = lab.request("r", [1, 2], max_tokens=12, ignore_eos=True)
    harness.submit(request)
    for _ in range(3):
        harness.step()
    harness.engine.control("pause", {})
    while harness.engine.has_work():
        harness.step()
    assert not harness.runner.in_flight
    assert len(harness.outcomes["r"].tokens) == 3
    harness.engine.control("resume", {})
    harness.run()
    assert harness.result("r") == lab.expected(request, 64)


def test_control_refuses_what_it_does_not_know(lab):
    harness = lab.Harness()
    with pytest.raises(InferplaneError, match="no control operation 'sing'"):
        harness.engine.control("sing", {})
    with pytest.raises(InferplaneError, match="takes no arguments"):
        harness.engine.control("pause", {"for": 3})


def test_a_context_that_does_not_fit_is_an_error_or_shrinks(lab):
    with pytest.raises(InferplaneError, match="longest context that fits is 32"):
        lab.Harness(num_pages=9, max_model_len=64)
    assert lab.Harness(num_pages=9, max_model_len=64, auto_max_model_len=True).engine.capacity.max_model_len == 32
    hybrid = lab.Harness(num_pages=1 + 5 + 3, groups=[(4, None), (4, 6)], auto_max_model_len=True)
    assert hybrid.engine.capacity.max_model_len == 20
