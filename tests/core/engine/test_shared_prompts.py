"""Sequences of one prompt, which is computed once, and ends that concern one request alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferplane.engine.stops import repeats
from inferplane_api.sampling import RepetitionDetection

PROMPT = list(range(1, 30))


def siblings(lab: Any, n: int, **fields: Any) -> list[Any]:
    return [
        lab.request(f"r-{index}", PROMPT, max_tokens=4, ignore_eos=True, follows="r-0" if index else "", **fields)
        for index in range(n)
    ]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("budget", [8, 64])
def test_a_prompt_is_computed_once(lab: Any, n: int, depth: int, budget: int) -> None:
    harness = lab.Harness(depth=depth, max_num_batched_tokens=budget)
    requests = siblings(lab, n)
    harness.submit(*requests)
    harness.run()
    computed = sum(sum(plan.counts) for plan in harness.runner.plans)
    decoded = 3 * n
    assert computed == decoded + len(PROMPT) + (n - 1) * (len(PROMPT) % 4 or 4), "all but the unfinished block"
    for request in requests:
        assert harness.result(request.request_id) == lab.expected(request, 64)


def test_without_a_prefix_cache_nobody_waits(lab: Any) -> None:
    harness = lab.Harness(prefix_caching=False)
    requests = siblings(lab, 3)
    harness.submit(*requests)
    assert len(harness.scheduler.waiting) == 3
    harness.run()
    for request in requests:
        assert harness.result(request.request_id) == lab.expected(request, 64)


@pytest.mark.parametrize("victim", ["r-0", "r-1"])
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_the_others_go_on_when_one_is_aborted(lab: Any, victim: str, after: int) -> None:
    harness = lab.Harness(max_num_batched_tokens=8)
    requests = siblings(lab, 3)
    harness.submit(*requests)
    for _ in range(after):
        harness.step()
        stats = harness.engine.stats()
        assert stats.num_requests_running + stats.num_requests_waiting == 3
    harness.engine.abort("client", [victim])
    harness.run()
    for request in requests:
        if request.request_id == victim:
            assert harness.result(victim)[1] == "abort"
        else:
            assert harness.result(request.request_id) == lab.expected(request, 64)
    stats = harness.engine.stats()
    assert (stats.num_requests_waiting, stats.num_requests_running) == (0, 0)


def test_who_waits_for_another_may_wait_too_long(lab: Any) -> None:
    harness = lab.Harness(max_num_batched_tokens=8)
    first, second = siblings(lab, 2, queue_timeout=1.0)
    harness.submit(first, second)
    harness.step()
    harness.now = 2.0
    harness.run()
    assert harness.outcomes["r-1"].last.error_code == "queue_timeout"
    assert harness.result("r-0") == lab.expected(first, 64)


def test_a_failed_row_ends_its_request_alone(lab: Any) -> None:
    harness = lab.Harness()
    requests = [lab.request(name, [1, 2, 3], max_tokens=6, ignore_eos=True) for name in "abc"]
    harness.submit(*requests)
    harness.step()
    plain = harness.runner._result

    def failing(plan: Any, rows: list[Any]) -> Any:
        result = plain(plan, rows)
        names = [rows[row].state.request_id for row in plan.sample_rows]
        if "b" in names:
            result.failed = {names.index("b"): "logits processor acme.x of acme 1.0 failed: ValueError: no"}
        return result

    harness.runner._result = failing
    harness.run()
    last = harness.outcomes["b"].last
    assert (last.finish_reason, last.error_code) == ("error", "logits_processor")
    assert "acme.x of acme 1.0" in last.error
    for request in (requests[0], requests[2]):
        assert harness.result(request.request_id) == lab.expected(request, 64)


def oracle(tokens: list[int], low: int, high: int, count: int) -> bool:
    return any(
        len(tokens) >= size * count and tokens[-size * count :] == tokens[-size:] * count
        for size in range(low, high + 1)
    )


def test_repetition_is_what_its_definition_says() -> None:
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(4000):
        tokens = random.integers(0, 2, random.integers(1, 14)).tolist()
        start = int(random.integers(0, 4)) % len(tokens)
        low = int(random.integers(1, 4))
        high, count = low + int(random.integers(0, 3)), int(random.integers(2, 5))
        detection = RepetitionDetection(max_pattern_size=high, min_pattern_size=low, min_count=count)
        expected = oracle(tokens[start:], low, high, count)
        assert repeats(tokens, start, detection) == expected
        seen.add(expected)
    assert seen == {True, False}
