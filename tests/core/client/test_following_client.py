"""A client whose engine is another process's: it follows what the owner tells, over a real channel."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inferplane.cells import NUM_OPEN, Cells
from inferplane.channel.address import EngineAddress, choose_address, make_folder, remove_address
from inferplane.channel.engine_end import EngineEnd
from inferplane.client.following_client import EngineNews, FollowingClient
from inferplane.errors import EngineDead
from inferplane.messages import Abort, Delta, Hello, Outputs, Ready, Request, Stats
from inferplane_api.kv import KVGeometry
from inferplane_api.runner import Capacity
from inferplane_api.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

GEOMETRY = KVGeometry(page_bytes=64, groups=(), block_size=16)
CAPACITY = Capacity(max_model_len=64, num_pages=9, max_num_seqs=4, kv_tokens=128, geometry=GEOMETRY)
CAUSE = ["it burst", "engine.dead", "mend it", "0123abcd"]


class Engine:
    """The far end of the channel, as the test wants it."""

    def __init__(self) -> None:
        self.address: EngineAddress = choose_address()
        make_folder(self.address)
        self.end = EngineEnd(self.address)
        self._inbox: list[Any] = []

    async def take(self, kind: type[Any]) -> Any:
        """The next message, which is of this kind."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self._inbox += self.end.receive(0.0)
            if self._inbox:
                message = self._inbox.pop(0)
                assert isinstance(message, kind), message
                return message
            await asyncio.sleep(0.005)
        raise AssertionError(f"no {kind.__name__} came")

    async def greet(self) -> None:
        hello = await self.take(Hello)
        self.end.send(Ready(client_id=hello.client_id, engine_id=0, capacity=CAPACITY))

    def close(self) -> None:
        self.end.close()
        remove_address(self.address)


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    made = [Engine(), Engine()]
    yield made
    for engine in made:
        engine.close()


def request(name: str) -> Request:
    params = SamplingParams(max_tokens=5)
    return Request(client_id="me", request_id=name, prompt_token_ids=[1, 2], params=params, seed=0)


def news(engine: Engine, state: Any = "ready", **fields: Any) -> EngineNews:
    values = {"stats": Stats(), "stats_before": Stats(), **fields}
    return EngineNews(state=state, address=engine.address, **values)


class Follower:
    def __init__(self, first: EngineNews) -> None:
        self.cells = Cells.private()
        self.broken: list[EngineDead] = []
        plan: Any = SimpleNamespace(limits=SimpleNamespace(max_num_seqs=4))
        self.client = FollowingClient(
            plan, first, "me", self.cells, max_queued=8, max_queued_tokens=100, on_broken=self.broken.append
        )


async def started(engine: Engine, first: EngineNews | None = None) -> Follower:
    follower = Follower(first or news(engine, "starting"))
    follower.client.launch()
    await engine.greet()
    await asyncio.wait_for(follower.client.ready(), 5)
    return follower


async def test_it_never_ends_the_engine(engines: list[Engine]) -> None:
    follower = await started(engines[0])
    await follower.client.close()
    await asyncio.sleep(0.05)
    assert engines[0].end.receive(0.0) == []


async def test_what_waits_goes_to_the_next_engine_and_what_has_begun_fails(engines: list[Engine]) -> None:
    old, new = engines
    follower = await started(old)
    client = follower.client
    begun, waits = client.submit([request("begun")]), client.submit([request("waits")])
    assert {(await old.take(Request)).request_id for _ in range(2)} == {"begun", "waits"}
    delta = Delta(request_id="begun", token_ids=[7])
    stats = Stats(generation_tokens=1)
    old.end.send(Outputs(client_id="me", engine_id=0, deltas=[delta], started=["begun"], stats=stats))
    received = begun.__aiter__()
    assert (await asyncio.wait_for(anext(received), 5))[1].token_ids == [7]
    before = Stats(generation_tokens=1, engine_restarts=1)
    dead = news(old, "starting", num_restarts=1, stats_before=before, cause=CAUSE)
    client.learn(dead)
    with pytest.raises(EngineDead, match="it burst") as caught:
        await asyncio.wait_for(anext(received), 5)
    assert caught.value.error_id == "0123abcd"
    assert (client.state, follower.cells.own[NUM_OPEN]) == ("starting", 1)
    late = client.submit([request("late")])
    client.learn(msgspec.structs.replace(dead, address=new.address))
    await new.greet()
    assert [(await new.take(Request)).request_id for _ in range(2)] == ["waits", "late"]
    client.learn(msgspec.structs.replace(dead, address=new.address, state="ready", cause=[]))
    ends = [Delta(request_id=name, token_ids=[8], finish_reason="length") for name in ("waits", "late")]
    new.end.send(Outputs(client_id="me", engine_id=0, deltas=ends, stats=Stats(generation_tokens=2)))
    for stream in (waits, late):
        assert [d.token_ids async for _, d in stream] == [[8]]
    assert (client.state, client.stats.generation_tokens, client.stats.engine_restarts) == ("ready", 3, 1)
    await client.close()


async def test_a_hung_engine_and_a_dead_one_are_what_the_owner_says(engines: list[Engine]) -> None:
    engine = engines[0]
    client = (await started(engine)).client
    stream = client.submit([request("a")])
    await engine.take(Request)
    client.learn(news(engine, "hung", cause=CAUSE))
    with pytest.raises(EngineDead, match="it burst"):
        await asyncio.wait_for(anext(stream.__aiter__()), 5)
    assert (await engine.take(Abort)).request_ids == ["a"]
    with pytest.raises(EngineDead):
        client.submit([request("b")])
    client.learn(news(engine, "ready"))
    client.submit([request("c")])
    client.learn(news(engine, "dead", cause=CAUSE))
    assert client.state == "dead"
    with pytest.raises(EngineDead) as caught:
        client.submit([request("d")])
    assert caught.value.error_id == "0123abcd"
    await client.close()


async def test_one_that_comes_late_knows_what_was_before(engines: list[Engine]) -> None:
    before = Stats(generation_tokens=10, engine_restarts=2)
    first = news(engines[0], num_restarts=2, stats=Stats(generation_tokens=15, engine_restarts=2), stats_before=before)
    client = (await started(engines[0], first)).client
    assert client.stats.generation_tokens == 15
    engines[0].end.send(Outputs(client_id="me", engine_id=0, deltas=[], stats=Stats(generation_tokens=6)))
    deadline = time.monotonic() + 5
    while client.stats.generation_tokens == 15 and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    assert (client.stats.generation_tokens, client.stats.engine_restarts) == (16, 2)
    await client.close()


async def test_it_has_caught_up_once_the_engine_that_is_ready_has_greeted_it_too(engines: list[Engine]) -> None:
    follower = Follower(news(engines[0], "starting"))
    client = follower.client
    client.launch()
    await asyncio.wait_for(client.caught_up(), 5)  # the owner waits too
    client.learn(news(engines[0], "ready"))
    waiting = asyncio.create_task(client.caught_up())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await engines[0].greet()
    await asyncio.wait_for(waiting, 5)
    assert client.state == "ready"
    await client.close()


@pytest.mark.parametrize("state", ["dead", "hung", "starting"])
async def test_for_an_engine_that_is_lost_meanwhile_it_does_not_wait(engines: list[Engine], state: Any) -> None:
    follower = Follower(news(engines[0], "ready"))
    follower.client.launch()
    waiting = asyncio.create_task(follower.client.caught_up())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    follower.client.learn(news(engines[0], state, num_restarts=int(state == "starting"), cause=CAUSE))
    await asyncio.wait_for(waiting, 5)
    await follower.client.close()
