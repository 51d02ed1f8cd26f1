"""The whole wire of streams, byte by byte: what clients' parsers see, however many deltas come at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from inferplane_scripted.checkpoint import EOS, VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO, WORLD, STOP, ST, OP, ACUTE = range(VOCAB_SIZE, VOCAB_SIZE + 6)
NOW = 1700000000
CHAT = {"id": "chatcmpl-r", "object": "chat.completion.chunk", "created": NOW, "model": "tiny"}
COMPLETION = {"id": "cmpl-r", "object": "text_completion", "created": NOW, "model": "tiny"}
CHAT_PROMPT, COMPLETION_PROMPT = 21, 2
"""Tokens of the conversation and of the prompt "Hi"."""


@pytest.fixture(params=[1, 3, 100], ids=lambda number: f"{number}-at-once")
def server(request: pytest.FixtureRequest, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    found = make()
    found.engine.deltas_at_once = request.param
    monkeypatch.setattr("time.time", lambda: float(NOW))
    return found


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def wire(fixed: dict[str, Any], *chunks: dict[str, Any], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + dumped({**fixed, **chunk}) + b"\n\n" for chunk in chunks) + end


def usage(prompt: int, completion: int) -> dict[str, Any]:
    total = prompt + completion
    return {
        "prompt_tokens": prompt,
        "total_tokens": total,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


def said(text: str, index: int = 0, **rest: Any) -> dict[str, Any]:
    """One chunk of a conversation."""
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {"choices": [{**choice, **rest}]}


def role(index: int = 0) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}


def ended(text: str, reason: str, stop: int | str | None = None, index: int = 0) -> dict[str, Any]:
    return said(text, index, finish_reason=reason, stop_reason=stop)


def wrote(text: str, index: int = 0, reason: str | None = None, stop: Any = None, **rest: Any) -> dict[str, Any]:
    """One chunk of a completion."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop}
    return {"choices": [{**choice, **rest}]}


async def test_chat(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, 34, EOS]
    answer = await server.chat(stream=True, request_id="r")
    chunks = [role(), said("Hello"), said(" world"), said('"'), ended("", "stop")]
    assert answer.content == wire(CHAT, *chunks)


async def test_chat_with_usage(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    answer = await server.chat(stream=True, request_id="r", stream_options={"include_usage": True})
    chunks = [role(), said("Hello"), ended(" world", "length")]
    none: dict[str, Any] = {"usage": None}
    last = {"choices": [], "usage": usage(CHAT_PROMPT, 2)}
    assert answer.content == wire(CHAT, *[{**chunk, **none} for chunk in chunks], last)


@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_usage_of_every_chunk_is_that_of_its_moment(server: Any, kind: str) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, HELLO, WORLD, EOS]
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await getattr(server, kind)(stream=True, stream_options=options)
    chunks = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == ([0] if kind == "chat" else []) + [1, 2, 3, 4, 5, 5]


async def test_a_character_of_two_tokens_is_one_event(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, *"é€".encode(), ACUTE, EOS]
    answer = await server.chat(stream=True, request_id="r")
    chunks = [role(), said("Hello"), said("é"), said("€"), said("é"), ended("", "stop")]
    assert answer.content == wire(CHAT, *chunks)


@pytest.mark.parametrize("include", [False, True], ids=["left-out", "included"])
async def test_a_stop_string_over_two_tokens(server: Any, include: bool) -> None:
    """What may become the stop string is held back; what comes behind it is dropped, and the engine told."""
    server.engine.outputs[None] = [HELLO, ST, OP, WORLD, WORLD]
    answer = await server.chat(stream=True, request_id="r", stop=["STOP!", "\n"], include_stop_str_in_output=include)
    pieces = [said(" ST"), ended("OP!", "stop", "STOP!")] if include else [said(" "), ended("", "stop", "STOP!")]
    assert answer.content == wire(CHAT, role(), said("Hello"), *pieces)
    # Unless everything came at once: then it has ended by itself.
    assert len(server.engine.aborted) == (0 if server.engine.deltas_at_once > 5 else 1)


async def test_what_was_held_back_comes_when_it_was_no_stop_string(server: Any) -> None:
    server.engine.outputs[None] = [ST, HELLO, ST]
    answer = await server.complete(stream=True, request_id="r", stop="STOP")
    chunks = [wrote(" "), wrote("STHello"), wrote(" ST", reason="length")]
    assert answer.content == wire(COMPLETION, *chunks)


async def test_two_choices(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    answer = await server.chat(stream=True, request_id="r", n=2, temperature=1)
    chunks = [role(), role(1), said("Hello"), said("Hello", 1), ended(" world", "length")]
    assert answer.content == wire(CHAT, *chunks, ended(" world", "length", index=1))


async def test_chat_with_logprobs(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    answer = await server.chat(stream=True, request_id="r", logprobs=True, top_logprobs=1)
    half = -0.6931471805599453
    entry = {"token": "Hello", "logprob": half, "bytes": list(b"Hello")}
    scores = {"content": [{**entry, "top_logprobs": [entry]}]}
    choice = {"delta": {"content": "Hello"}, "logprobs": scores, "finish_reason": "length", "stop_reason": None}
    assert answer.content == wire(CHAT, role(), {"choices": [{"index": 0, **choice}]})


async def test_completions(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, EOS]
    answer = await server.complete(stream=True, request_id="r")
    chunks = [wrote("Hello"), wrote(" world"), wrote("", reason="stop")]
    assert answer.content == wire(COMPLETION, *chunks)


async def test_completions_of_two_prompts_with_usage_and_echo(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    options = {"include_usage": True}
    body = {"prompt": ["Hi", "Yo"], "echo": True, "stream_options": options}
    answer = await server.complete(stream=True, request_id="r", **body)
    chunks = [wrote("HiHello"), wrote("YoHello", 1), wrote(" world", 0, "length"), wrote(" world", 1, "length")]
    last = {"choices": [], "usage": usage(2 * COMPLETION_PROMPT, 4)}
    assert answer.content == wire(COMPLETION, *[{**chunk, "usage": None} for chunk in chunks], last)


async def test_completions_with_logprobs_and_ids(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    answer = await server.complete(stream=True, request_id="r", logprobs=0, return_token_ids=True)
    half = -0.6931471805599453

    def scores(token: str, offset: int) -> dict[str, Any]:
        top = [{token: half}]
        return {"text_offset": [offset], "token_logprobs": [half], "tokens": [token], "top_logprobs": top}

    first = wrote("Hello", logprobs=scores("Hello", 0), token_ids=[HELLO], prompt_token_ids=list(b"Hi"))
    second = wrote(" world", reason="length", logprobs=scores(" world", 5), token_ids=[WORLD])
    assert answer.content == wire(COMPLETION, first, second)


@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_what_came_before_an_error_is_sent_before_it(server: Any, kind: str) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, HELLO]
    server.engine.error = "the logits were not finite"
    answer = await getattr(server, kind)(stream=True, request_id="r")
    error = {"message": server.engine.error, "type": "server_error", "param": None, "code": "generation_failed"}
    chunks = [role(), said("Hello"), said(" world")] if kind == "chat" else [wrote("Hello"), wrote(" world")]
    fixed = CHAT if kind == "chat" else COMPLETION
    *events, last, rest = answer.content.split(b"\n\n")
    assert b"".join(event + b"\n\n" for event in events) == wire(fixed, *chunks, end=b"")
    found = json.loads(last.removeprefix(b"data: "))["error"]
    assert {name: found[name] for name in error} == error
    assert rest == b""


async def test_the_death_of_an_engine_in_a_stream(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, HELLO]
    server.engine.die_after = 2
    answer = await server.complete(stream=True, request_id="r")
    *events, last, rest = answer.content.split(b"\n\n")
    assert b"".join(event + b"\n\n" for event in events) == wire(COMPLETION, wrote("Hello"), wrote(" world"), end=b"")
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine.dead"
    assert rest == b""


async def test_larger_pieces_on_request(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, HELLO, WORLD, EOS]
    answer = await server.complete(stream=True, request_id="r", stream_interval=3)
    assert answer.content == wire(COMPLETION, wrote("Hello"), wrote(" worldHello world"), wrote("", reason="stop"))
