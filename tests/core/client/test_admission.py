"""What may wait, and when there is room again; counters that outlive an engine; streams that end with an error."""

from __future__ import annotations

import asyncio

import pytest

from inferplane.cells import Cells
from inferplane.client.admission import MAX_RETRY_SECONDS, Admission
from inferplane.client.restarts import MAX_DELAY, Restarts, carried_over
from inferplane.client.streams import Stream
from inferplane.errors import EngineDead, InvalidValue, QueueFull
from inferplane.messages import Delta, Request, Stats
from inferplane_api.sampling import SamplingParams


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_as_many_requests_as_slots_and_queue_hold() -> None:
    admission = Admission(2, 3, 1000)
    for _ in range(5):
        admission.check(1, 1)
        admission.enter(1)
    with pytest.raises(QueueFull) as caught:
        admission.check(1, 1)
    assert caught.value.reason == "requests"
    admission.leave(1, started=False)
    admission.check(1, 1)
    with pytest.raises(InvalidValue, match="at most 5"):
        admission.check(6, 6)


def test_tokens_that_wait_are_bounded_and_a_single_long_prompt_is_not_refused() -> None:
    admission = Admission(8, 100, 50)
    admission.check(1, 500)
    admission.enter(500)
    with pytest.raises(QueueFull) as caught:
        admission.check(1, 1)
    assert caught.value.reason == "tokens"
    admission.start(500)
    admission.check(1, 50)
    admission.enter(40)
    with pytest.raises(QueueFull):
        admission.check(1, 11)
    admission.leave(40, started=False)
    admission.leave(500, started=True)
    assert (admission.num_open, admission.num_waiting, admission.tokens_waiting) == (0, 0, 0)


def test_the_pace_tells_when_to_come_back() -> None:
    clock = Clock()
    admission = Admission(1, 3, 10_000, clock)
    for second in range(10):
        clock.now = 4.0 * second
        admission.enter(1)
        admission.leave(1, started=False)
    for _ in range(4):
        admission.enter(1)
    clock.now = 40.0
    with pytest.raises(QueueFull) as caught:
        admission.check(2, 2)
    assert caught.value.retry_after == pytest.approx(8.0), "one ends every 4 s, and two must"
    clock.now = 40_000.0
    with pytest.raises(QueueFull) as caught:
        admission.check(2, 2)
    assert caught.value.retry_after == MAX_RETRY_SECONDS


def test_restarts_come_ever_later_and_end() -> None:
    restarts = Restarts(20)
    delays = [restarts.next_delay() for _ in range(20)]
    assert delays == sorted(delays)
    assert (delays[0], delays[1], delays[-1]) == (0.5, 1.0, MAX_DELAY)
    assert restarts.next_delay() is None
    assert Restarts(0).next_delay() is None


def test_counters_go_on_and_gauges_start_anew() -> None:
    before = Stats(generation_tokens=100, num_requests_running=7, kv_cache_usage=0.5, engine_restarts=1)
    after = carried_over(before, Stats(generation_tokens=5, num_requests_running=1, kv_cache_usage=0.25))
    assert after == Stats(generation_tokens=105, num_requests_running=1, kv_cache_usage=0.25, engine_restarts=1)


def make_stream(count: int) -> tuple[Stream, list[str]]:
    forgotten: list[str] = []
    requests = [
        Request(client_id="c", request_id=f"r{i}", prompt_token_ids=[1], params=SamplingParams(), seed=0)
        for i in range(count)
    ]
    return Stream(requests, forgotten.extend), forgotten


async def test_an_error_comes_behind_what_was_delivered() -> None:
    stream, forgotten = make_stream(2)
    stream.deliver(0, Delta(request_id="r0", token_ids=[1]))
    stream.deliver(1, Delta(request_id="r1", token_ids=[2], finish_reason="stop"))
    stream.fail(EngineDead("gone"))
    seen = []

    async def read() -> None:
        async for index, _ in stream:
            seen.append(index)

    with pytest.raises(EngineDead, match="gone"):
        await read()
    assert seen == [0, 1]
    assert set(forgotten) == {"r0", "r1"}


async def test_an_aborted_sequence_is_not_waited_for() -> None:
    stream, forgotten = make_stream(2)
    stream.abort(0)
    stream.deliver(0, Delta(request_id="r0", token_ids=[1]))
    stream.deliver(1, Delta(request_id="r1", finish_reason="stop"))
    async with asyncio.timeout(5):
        assert [index async for index, _ in stream] == [1]
    assert forgotten == ["r0"]


def test_bounds_hold_for_several_front_ends_together() -> None:
    rows = [Cells.private().own for _ in range(2)]
    one, other = (Admission(2, 3, 50, cells=Cells(rows, own)) for own in range(2))
    for admission in (one, other, one, other):
        admission.check(1, 5)
        admission.enter(5)
    one.check(1, 5)
    with pytest.raises(QueueFull, match="4 requests"):
        one.check(2, 10)
    other.leave(5, started=False)
    one.check(2, 10)
    other.enter(30)
    with pytest.raises(QueueFull, match="45 prompt tokens") as caught:
        one.check(1, 6)
    assert caught.value.reason == "tokens"
    other.start(30)
    one.check(1, 6)
