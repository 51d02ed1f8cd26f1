"""The line about load: rates from two readings, and silence while nothing happens."""

from __future__ import annotations

import asyncio

import pytest

from inferplane.client.stats_log import StatsLog
from inferplane.messages import Stats


class Engine:
    def __init__(self) -> None:
        self.now = 100.0
        self.stats = Stats(prompt_tokens=50, generation_tokens=70, prefix_cache_queries=10, prefix_cache_hits=10)

    def log(self) -> StatsLog:
        return StatsLog(lambda: self.stats, lambda: self.now)


def test_rates_are_of_the_interval_and_nothing_is_said_while_idle() -> None:
    engine = Engine()
    log = engine.log()
    engine.now += 5
    assert log.line() is None
    engine.now += 5
    engine.stats = Stats(
        prompt_tokens=150, generation_tokens=95, num_requests_running=3, num_requests_waiting=2, kv_cache_usage=0.1234,
        prefix_cache_queries=110, prefix_cache_hits=35,
    )  # fmt: skip
    assert log.line() == (
        "prompt 20.0 tokens/s, generation 5.0 tokens/s; 3 running, 2 waiting; KV cache 12.3% used; "
        "prefix cache hits 25.0%"
    )
    engine.now += 5
    line = log.line()
    assert line is not None, "something runs"
    assert line.startswith("prompt 0.0 tokens/s")
    assert "hits" not in line
    engine.now += 5
    engine.stats = Stats(prompt_tokens=150, generation_tokens=105)
    assert "generation 2.0 tokens/s; 0 running" in str(log.line())
    engine.now += 5
    assert log.line() is None


async def test_it_is_logged_every_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "inferplane")
    engine = Engine()
    task = asyncio.create_task(engine.log().run(0.01))
    engine.now += 1
    await asyncio.sleep(0.05)
    assert not caplog.messages
    engine.stats = Stats(prompt_tokens=51, generation_tokens=70)
    engine.now += 1
    await asyncio.sleep(0.1)
    task.cancel()
    assert len(caplog.messages) == 1
    assert "prompt 1.0 tokens/s" in caplog.messages[0] or "prompt 0.5 tokens/s" in caplog.messages[0]
