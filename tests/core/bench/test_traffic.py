"""Arrivals and concurrency."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from inferplane.bench.traffic import arrival_times, run_all
from inferplane.errors import InvalidValue


def test_all_at_once() -> None:
    assert arrival_times(5, math.inf, 1.0, 0).tolist() == [0.0] * 5


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_rate_is_the_one_asked_for_and_the_gaps_have_their_spread(burstiness: float) -> None:
    times = arrival_times(20_001, 50.0, burstiness, 3)
    gaps = np.diff(times)
    assert times[-1] == pytest.approx(20_000 / 50.0)
    assert (gaps >= 0).all()
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_exactly_even() -> None:
    assert arrival_times(4, 2.0, math.inf, 0).tolist() == [0.0, 0.5, 1.0, 1.5]


def test_the_seed_decides() -> None:
    assert arrival_times(9, 1.0, 1.0, 1).tolist() == arrival_times(9, 1.0, 1.0, 1).tolist()
    assert arrival_times(9, 1.0, 1.0, 1).tolist() != arrival_times(9, 1.0, 1.0, 2).tolist()


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0)])
def test_impossible_values(rate: float, burstiness: float) -> None:
    with pytest.raises(InvalidValue):
        arrival_times(3, rate, burstiness, 0)


@pytest.mark.parametrize("limit", [1, 3, None])
async def test_concurrency_is_bounded_and_results_keep_their_order(limit: int | None) -> None:
    running = most = 0

    async def send(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - item):
            await asyncio.sleep(0)
        running -= 1
        return item * item

    assert await run_all(range(20), np.zeros(20), limit, send) == [item * item for item in range(20)]
    assert most == (limit or 20)


async def test_a_failure_of_the_driver_leaves_no_task() -> None:
    async def send(item: int) -> int:
        if item == 3:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()
        return item

    with pytest.raises(RuntimeError, match="a bug"):
        await run_all(range(5), np.zeros(5), None, send)
    assert asyncio.all_tasks() == {asyncio.current_task()}
