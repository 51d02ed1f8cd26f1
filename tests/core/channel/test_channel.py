"""Messages cross the channel whole, to the client they name, whatever a stranger sends."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from inferplane.channel.address import choose_address, make_folder, remove_address
from inferplane.channel.client_end import AsyncClientEnd, BlockingClientEnd
from inferplane.channel.codec import decode_from_engine, decode_to_engine, encode
from inferplane.channel.engine_end import AlivePublisher, EngineEnd
from inferplane.messages import Abort, Alive, Delta, Hello, Outputs, Request
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferplane.channel.address import EngineAddress

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@pytest.fixture
def address() -> Iterator[EngineAddress]:
    made = choose_address()
    assert not Path(made.folder).exists()
    make_folder(made)
    yield made
    remove_address(made)


@given(prompt=tokens, seed=st.integers(0, 2**64 - 1), salt=st.text(max_size=20), bias=st.floats(-100, 100))
def test_a_request_survives(prompt: list[int], seed: int, salt: str, bias: float) -> None:
    params = SamplingParams(stop=("a",), logit_bias={3: bias}, max_tokens=7, temperature=0.5)
    request = Request(client_id="c", request_id="r", prompt_token_ids=prompt, params=params, seed=seed, cache_salt=salt)
    assert decode_to_engine(encode(request)) == request


def test_outputs_survive_with_infinities() -> None:
    entry = TokenLogprobs(5, -0.5, 1, [5, 6], [-0.5, float("-inf")])
    delta = Delta(request_id="r", token_ids=[5], logprobs=[entry], prompt_logprobs=[None, entry], finish_reason="stop")
    message = Outputs(client_id="c", engine_id=0, deltas=[delta])
    assert decode_from_engine(encode(message)) == message


def test_an_invalid_parameter_is_refused_when_decoded() -> None:
    good = encode(Request(client_id="c", request_id="r", prompt_token_ids=[1], params=SamplingParams(), seed=1))
    raw = msgspec.msgpack.decode(good)
    raw["params"]["top_p"] = 7.0
    with pytest.raises(msgspec.ValidationError, match="top_p"):
        decode_to_engine(msgspec.msgpack.encode(raw))


def test_the_folder_is_private(address: EngineAddress) -> None:
    assert stat.S_IMODE(Path(address.folder).stat().st_mode) == 0o700
    remove_address(address)
    assert not Path(address.folder).exists()
    remove_address(address)


def test_each_client_gets_its_own_answers(address: EngineAddress) -> None:
    first, second = BlockingClientEnd(address, "one"), BlockingClientEnd(address, "two")
    first.send(Hello(client_id="one"))  # before the engine listens: kept until it does
    engine = EngineEnd(address)
    second.send(Abort(client_id="two", request_ids=["x"]))
    received: list[object] = []
    while len(received) < 2:
        received += engine.receive(2.0)
    assert {type(message) for message in received} == {Hello, Abort}
    for name in ("two", "one", "gone"):
        engine.send(Outputs(client_id=name, engine_id=0, deltas=[Delta(request_id=name)]))
    for end, name in ((first, "one"), (second, "two")):
        message = end.receive(2.0)
        assert isinstance(message, Outputs)
        assert message.deltas[0].request_id == name
        assert end.receive(0.05) is None
        end.close()
    engine.close()


def test_a_malformed_message_is_dropped_and_the_next_is_taken(address: EngineAddress) -> None:
    engine = EngineEnd(address)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(address.data)
    for data in (b"", b"\xc1", b"\x81\xa4type\xa3zzz", encode(Hello(client_id="z"))):
        stranger.send(data)
    stranger.send_multipart([b"two", b"frames", b"more"])
    stranger.send(encode(Hello(client_id="y")))
    received: list[object] = []
    while len(received) < 2:
        received += engine.receive(2.0)
    assert received == [Hello(client_id="z"), Hello(client_id="y")]
    context.destroy(linger=0)
    engine.close()


def test_liveness_reaches_an_event_loop(address: EngineAddress) -> None:
    async def main() -> object:
        end = AsyncClientEnd(address, "c")
        publisher = AlivePublisher(address)
        try:
            for _ in range(100):
                publisher.send(Alive(client_id="", engine_id=0, steps=3, busy_seconds=0.0))
                try:
                    return await asyncio.wait_for(end.receive_alive(), 0.1)
                except TimeoutError:
                    continue
            return None
        finally:
            publisher.close()
            end.close()

    message = asyncio.run(main())
    assert isinstance(message, Alive)
    assert message.steps == 3
