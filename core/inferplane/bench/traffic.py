"""When requests are sent: arrivals and concurrency. Knows no server."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import numpy.typing as npt

Item = TypeVar("Item")
Result = TypeVar("Result")


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> npt.NDArray[np.float64]:
    """[count] float64, seconds after the start; the first is 0.

    rate is in requests per second, inf: all at once. burstiness is the shape of the gamma distribution of the gaps:
    1 is a Poisson process, less is burstier, more is more even, inf is exactly even. The times are scaled so that the
    mean rate is the one that was asked for. Raises InvalidValue.
    """
    if not rate > 0:
        raise InvalidValue("request_rate", rate, "must be above 0, or inf")
    if not burstiness > 0:
        raise InvalidValue("burstiness", burstiness, "must be above 0")
    if math.isinf(rate) or count < 2:
        return np.zeros(count)
    if math.isinf(burstiness):
        gaps = np.full(count - 1, 1.0)
    else:
        gaps = np.random.default_rng(seed).gamma(shape=burstiness, scale=1.0, size=count - 1)
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    return times * ((count - 1) / rate / times[-1]) if times[-1] > 0 else times


async def run_all(
    items: Sequence[Item],
    times: npt.NDArray[np.float64],
    max_concurrency: int | None,
    send: Callable[[Item], Awaitable[Result]],
) -> list[Result]:
    """Send each item at its time, at most `max_concurrency` at once; the results stand in the order of the items."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    started = loop.time()

    async def one(item: Item) -> Result:
        async with gate:
            return await send(item)

    tasks: list[asyncio.Task[Result]] = []
    try:
        for item, when in zip(items, times.tolist(), strict=True):
            if (wait := started + when - loop.time()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.ensure_future(one(item)))
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
