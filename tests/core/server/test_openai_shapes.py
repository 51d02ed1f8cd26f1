"""Every answer is what OpenAI's own types say, strictly, whatever was asked for, and holds no more than is listed."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.shared import ErrorObject
from pydantic import BaseModel

from inferplane.errors import EngineDead
from inferplane.messages import Delta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


_CHOICE = {"choices[].stop_reason", "choices[].token_ids"}
EXTENSIONS: dict[type[BaseModel], set[str]] = {
    Completion: {
        *_CHOICE,
        "choices[].prompt_token_ids",
        "choices[].prompt_logprobs",
        # of OpenAI's chat answers, and vLLM's of both
        "service_tier",
        "metrics",
    },
    ChatCompletion: {
        *_CHOICE,
        "choices[].message.reasoning",
        "prompt_token_ids",
        "prompt_logprobs",
        "metrics",
    },
    ChatCompletionChunk: {*_CHOICE, "prompt_token_ids", "metrics"},
    CreateEmbeddingResponse: {"id", "created", "usage.completion_tokens", "usage.prompt_tokens_details"},
    Model: {"max_model_len", "parent", "permission", "root"},
    ErrorObject: set(),
}
"""What our answers have beyond OpenAI's types, as vLLM's have; a field that is in neither is a mistake."""


def beyond(value: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields that the types do not know."""
    if isinstance(value, list):
        for item in value:
            yield from beyond(item, f"{path}[]")
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}.{name}".removeprefix(".")
        for name in type(value).model_fields:
            yield from beyond(getattr(value, name), f"{path}.{name}".removeprefix("."))


def check(kind: type[BaseModel], text: str) -> Any:
    found = kind.model_validate_json(text, strict=True)
    unlisted = set(beyond(found)) - EXTENSIONS[kind]
    assert not unlisted, f"{kind.__name__} has fields that neither OpenAI nor EXTENSIONS knows"
    return found


def check_error(text: str) -> Any:
    """`{"error": {...}}` with OpenAI's four fields, all of them there, and nothing beside or inside."""
    value = json.loads(text)
    assert value.keys() == {"error"}
    assert value["error"].keys() == {"message", "type", "param", "code"}
    return check(ErrorObject, json.dumps(value["error"]))


def check_embeddings(text: str, *, as_text: bool) -> Any:
    """OpenAI's type knows numbers only; in base64 they are little-endian float32."""
    value = json.loads(text)
    for each in value["data"] if as_text else ():
        packed = base64.b64decode(each["embedding"], validate=True)
        each["embedding"] = list(struct.unpack(f"<{len(packed) // 4}f", packed))
    return check(CreateEmbeddingResponse, json.dumps(value))


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


@pytest.mark.parametrize("given", ["Hi", ["Hi", "Hello"], [72, 105], [[72], [73, 74]]], ids=str)
async def test_embeddings(embedder: Callable[..., Any], given: Any) -> None:
    server = embedder()
    floats, packed = [
        check_embeddings(
            (await server.http.post("/v1/embeddings", json={"input": given, "encoding_format": form})).text,
            as_text=form == "base64",
        )
        for form in ("float", "base64")
    ]
    assert packed.data == floats.data
    assert [each.index for each in floats.data] == list(range(len(floats.data)))
    assert len(floats.data) == (2 if isinstance(given[0], (list, str)) and not isinstance(given, str) else 1)
    assert packed.usage == floats.usage
    assert floats.usage.prompt_tokens == floats.usage.total_tokens > 0


async def test_every_extension_is_there(make: Callable[..., Any], embedder: Callable[..., Any]) -> None:
    """A list with a field that no answer has any more would let it come back as a mistake."""
    server = make(enable_per_request_metrics=True)
    server.engine.outputs[None] = [259, 260, 256]
    everything = {"return_token_ids": True}
    scored = {**everything, "prompt_logprobs": 1}
    stream = {**everything, "stream": True, "stream_options": {"include_usage": True}}
    found: dict[type[BaseModel], set[str]] = {
        Completion: set(beyond(check_completion((await server.complete(**scored)).text))),
        ChatCompletion: set(beyond(check(ChatCompletion, (await server.chat(**scored)).text))),
        ChatCompletionChunk: {
            path
            for chunk in chunks((await server.chat(**stream)).text)
            for path in beyond(check(ChatCompletionChunk, chunk))
        },
        Model: set(beyond(check(Model, (await server.http.get("/v1/models/tiny")).text))),
        CreateEmbeddingResponse: set(
            beyond(
                check_embeddings(
                    (await embedder().http.post("/v1/embeddings", json={"input": "Hi"})).text, as_text=False
                )
            )
        ),
        ErrorObject: set(),
    }
    assert found == EXTENSIONS
    for chunk in chunks((await server.complete(**stream)).text):
        check_completion(chunk)


async def _bad_value(server: Any) -> Any:
    return await server.complete(temperature=9)


async def _no_json(server: Any) -> Any:
    return await server.http.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})


async def _other_model(server: Any) -> Any:
    return await server.chat(model="other")


async def _other_route(server: Any) -> Any:
    return await server.http.get("/v1/other")


async def _too_large(server: Any) -> Any:
    return await server.complete(prompt="x" * 5000)


async def _full(server: Any) -> Any:
    server.engine.full = True
    return await server.chat(stream=True)


async def _starting(server: Any) -> Any:
    server.engine.state = "starting"
    return await server.complete()


async def _dead(server: Any) -> Any:
    server.engine.state, server.engine.failure = "dead", EngineDead("it died", code="engine.dead", remedy="restart")
    return await server.chat()


@pytest.mark.parametrize(
    ("ask", "status", "kind", "param", "code"),
    [
        (_bad_value, 400, "invalid_request_error", "temperature", "invalid_value"),
        (_no_json, 400, "invalid_request_error", None, "invalid_json"),
        (_other_model, 404, "invalid_request_error", "model", "model_not_found"),
        (_other_route, 404, "invalid_request_error", None, "unknown_url"),
        (_too_large, 413, "invalid_request_error", None, "request_too_large"),
        (_full, 429, "rate_limit_error", None, "rate_limit_exceeded"),
        (_starting, 503, "server_error", None, "engine_starting"),
        (_dead, 503, "server_error", None, "engine.dead"),
    ],
)
async def test_errors(make: Callable[..., Any], ask: Any, status: int, kind: str, param: str | None, code: str) -> None:
    answer = await ask(make(max_body_size=2000))
    error = check_error(answer.text)
    assert answer.headers["content-type"] == "application/json"
    assert (answer.status_code, error.type, error.param, error.code) == (status, kind, param, code)
    assert error.message


@pytest.mark.parametrize("route", ["chat/completions", "completions", "embeddings", "other"])
async def test_the_error_of_a_wrong_key(make: Callable[..., Any], route: str) -> None:
    answer = await make(api_key="right").http.post(f"/v1/{route}", json={}, headers={"Authorization": "Bearer wrong"})
    error = check_error(answer.text)
    assert (answer.status_code, error.param, error.code) == (401, None, "invalid_api_key")


async def test_errors_of_embeddings(embedder: Callable[..., Any]) -> None:
    server = embedder()
    for body, param in (({"input": []}, "input"), ({"input": "Hi", "dimensions": 0}, "dimensions")):
        answer = await server.http.post("/v1/embeddings", json=body)
        assert (answer.status_code, check_error(answer.text).param) == (400, param)
    server.engine.full = True
    answer = await server.http.post("/v1/embeddings", json={"input": "Hi"})
    assert (answer.status_code, check_error(answer.text).code) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize(
    ("refusal", "param", "code"),
    [("refused", None, "refused"), ("bad_processor_argument", "vllm_xargs", "invalid_value")],
)
async def test_what_the_engine_refuses_is_a_bad_request(
    make: Callable[..., Any], refusal: str, param: str | None, code: str
) -> None:
    server = make()
    server.engine.deltas = lambda request: [
        Delta(request_id=request.request_id, finish_reason="error", error="not this one", error_code=refusal)
    ]
    for answer in (await server.complete(), await server.chat(n=2)):
        error = check_error(answer.text)
        assert (answer.status_code, error.type) == (400, "invalid_request_error")
        assert (error.param, error.code) == (param, code)
        assert "not this one" in error.message


async def test_the_error_that_ends_a_stream(make: Callable[..., Any]) -> None:
    server = make()
    server.engine.error = "it went wrong"
    for answer in (await server.complete(stream=True), await server.chat(stream=True)):
        events = [event.removeprefix("data: ") for event in answer.text.split("\n\n") if event]
        (error,) = [check_error(event) for event in events if '"error"' in event]
        assert (error.message, error.type) == ("it went wrong", "server_error")


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
