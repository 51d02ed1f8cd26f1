"""Every answer is what OpenAI's own types say, strictly, whatever was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

CASES: list[dict[str, Any]] = [
    {},
    {"n": 2, "temperature": 1},
    {"stop": "world"},
    {"max_tokens": 1},
    {"return_token_ids": True},
    {"seed": 1, "presence_penalty": 0.5},
]
COMPLETION_CASES = [*CASES, {"logprobs": 2}, {"logprobs": 0, "echo": True}, {"prompt": ["a", "b"]}, {"prompt": [72]}]
CHAT_CASES = [*CASES, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True}, {"max_completion_tokens": 2}]


def check(kind: type[BaseModel], text: str) -> Any:
    return kind.model_validate_json(text, strict=True)


def chunks(text: str) -> list[str]:
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def check_completion(text: str) -> Any:
    """As OpenAI's server does, but not its type: null until a stream's end, and for a prompt's first token."""
    value = json.loads(text)
    for choice in value["choices"]:
        assert choice["finish_reason"] in (None, "stop", "length")
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for column in ("token_logprobs", "top_logprobs"):
            if choice["logprobs"] and choice["logprobs"][column][:1] == [None]:
                choice["logprobs"][column].pop(0)
    return check(Completion, json.dumps(value))


@pytest.fixture
def shared(shared: Any) -> Any:
    shared.engine.outputs[None] = [259, 260, 256]
    return shared


@pytest.mark.parametrize("body", COMPLETION_CASES, ids=str)
async def test_completions(shared: Any, body: dict[str, Any]) -> None:
    answer = check_completion((await shared.complete(**body)).text)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    streamed = await shared.complete(**body, stream=True, stream_options={"include_usage": True})
    pieces = [check_completion(chunk) for chunk in chunks(streamed.text)]
    assert [choice.text for choice in answer.choices] == [
        "".join(choice.text for piece in pieces for choice in piece.choices if choice.index == index)
        for index in range(len(answer.choices))
    ]
    assert (pieces[-1].choices, pieces[-1].usage) == ([], answer.usage)


@pytest.mark.parametrize("body", CHAT_CASES, ids=str)
async def test_chat(shared: Any, body: dict[str, Any]) -> None:
    answer = check(ChatCompletion, (await shared.chat(**body)).text)
    streamed = await shared.chat(**body, stream=True, stream_options={"include_usage": True})
    pieces = [check(ChatCompletionChunk, chunk) for chunk in chunks(streamed.text)]
    assert pieces[0].choices[0].delta.role == answer.choices[0].message.role == "assistant"
    for choice in answer.choices:
        deltas = [each for piece in pieces for each in piece.choices if each.index == choice.index]
        assert "".join(each.delta.content or "" for each in deltas) == choice.message.content
        assert deltas[-1].finish_reason == choice.finish_reason
    assert (pieces[-1].choices, pieces[-1].usage) == ([], answer.usage)
    assert len({piece.id for piece in pieces}) == 1


async def test_models(shared: Any) -> None:
    listed = (await shared.http.get("/v1/models")).json()
    for name in [model["id"] for model in listed["data"]]:
        check(Model, (await shared.http.get(f"/v1/models/{name}")).text)


async def test_a_stream_byte_by_byte(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole wire, so that no client's parser meets a surprise."""
    server = make()
    server.engine.outputs[None] = [259, 256]
    monkeypatch.setattr("time.time", lambda: 1700000000.0)
    answer = await server.chat(stream=True, stream_options={"include_usage": True}, request_id="r")
    start = b'data: {"id":"chatcmpl-r","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":'
    going = b',"logprobs":null,"finish_reason":null}],"usage":null}'
    stopped = b',"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":null}'
    usage = b'{"prompt_tokens":21,"total_tokens":23,"completion_tokens":2,"prompt_tokens_details":null}}'
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content.split(b"\n\n") == [
        start + b'[{"index":0,"delta":{"role":"assistant","content":""}' + going,
        start + b'[{"index":0,"delta":{"content":"Hello"}' + going,
        start + b'[{"index":0,"delta":{"content":""}' + stopped,
        start + b'[],"usage":' + usage,
        b"data: [DONE]",
        b"",
    ]
