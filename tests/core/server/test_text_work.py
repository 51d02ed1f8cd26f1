"""Work with texts: bounded in threads, in time and in what waits, and never in the way of anything else."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from inferplane.errors import QueueFull
from inferplane.server.errors import ApiError
from inferplane.server.text_work import MAX_LATE, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What blocks a thread until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def make_lane(*, num_threads: int = 1, max_waiting: int = 4, seconds: float = 5.0) -> tuple[Lane, list[int]]:
    refused: list[int] = []
    return Lane(
        "tests", num_threads=num_threads, max_waiting=max_waiting, seconds=seconds, refused=lambda: refused.append(1)
    ), refused


async def test_results_and_errors_come_back() -> None:
    lane, _ = make_lane(num_threads=2)
    assert await asyncio.gather(*(lane.run(pow, 2, n) for n in range(5))) == [1, 2, 4, 8, 16]
    with pytest.raises(ZeroDivisionError):
        await lane.run(divmod, 1, 0)
    assert lane.num_pending == 0


async def test_too_much_waiting_is_refused(gate: threading.Event) -> None:
    lane, refused = make_lane(max_waiting=2)
    jobs = [asyncio.ensure_future(lane.run(gate.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await lane.run(int)
    assert refused == [1]
    gate.set()
    await asyncio.gather(*jobs)
    assert await lane.run(int) == 0


async def test_a_piece_that_never_ends_is_given_up_and_the_next_one_runs(gate: threading.Event) -> None:
    lane, _ = make_lane(seconds=0.05)
    for _ in range(MAX_LATE):
        with pytest.raises(ApiError) as caught:
            await lane.run(gate.wait)
        assert (caught.value.status, caught.value.code) == (503, "text_timeout")
    lane._seconds = 5.0
    assert await lane.run(int) == 0


async def test_who_leaves_gives_up_its_place(gate: threading.Event) -> None:
    lane, _ = make_lane()
    first = asyncio.ensure_future(lane.run(gate.wait))
    done: list[int] = []
    second = asyncio.ensure_future(lane.run(done.append, 1))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert lane.num_pending == 1
    gate.set()
    await first
    await lane.run(int)
    assert done == [], "nobody wanted it any more"
