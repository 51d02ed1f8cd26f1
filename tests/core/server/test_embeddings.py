"""POST /v1/embeddings over an engine that is a script: shapes, order, batches, errors by name, ends."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from openai.types import CreateEmbeddingResponse

from inferplane.errors import QueueFull
from inferplane_api.pooling import PoolingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.messages import Request

PATH = "/v1/embeddings"
USER = [{"role": "user", "content": "Hi"}]


def vector(request: Request) -> list[float]:
    """Tells prompts apart, and is not short in binary."""
    return [len(request.prompt_token_ids) / 3, request.prompt_token_ids[0] / 7]


def as_float32(values: list[float]) -> list[float]:
    return list(struct.unpack("<2f", struct.pack("<2f", *values)))


@pytest.fixture
def server(embedder: Callable[..., Any]) -> Any:
    return embedder()


async def post(server: Any, **body: Any) -> Any:
    return await server.http.post(PATH, json=body)


async def refused(server: Any, **body: Any) -> dict[str, Any]:
    answer = await post(server, **body)
    assert answer.status_code == 400, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


async def test_the_answer_is_openais(server: Any) -> None:
    answer = await post(server, model="tiny", input=["Hi", "Hello"], user="u")
    assert answer.status_code == 200, answer.text
    body = CreateEmbeddingResponse.model_validate_json(answer.text, strict=True)
    raw = answer.json()
    assert raw["id"].startswith("embd-")
    assert raw["object"] == "list"
    assert abs(raw["created"] - server.app.state.context.created) < 60
    assert [each.index for each in body.data] == [0, 1]
    asked = server.engine.submitted
    assert [each.embedding for each in body.data] == [as_float32(vector(request)) for request in asked]
    total = sum(len(request.prompt_token_ids) for request in asked)
    assert (body.usage.prompt_tokens, body.usage.total_tokens) == (total, total)


async def test_requests_sample_nothing_and_say_how_to_pool(server: Any) -> None:
    await post(server, input="Hi", cache_salt="s", normalize=False)
    (request,) = server.engine.submitted
    assert request.pooling == PoolingParams(pooling_type="MEAN", normalize=False)
    assert (request.params.max_tokens, request.cache_salt) == (0, "s")


async def test_base64_is_little_endian_float32(server: Any) -> None:
    plain = (await post(server, input=[[9], [5, 6]], encoding_format="float")).json()["data"]
    packed = (await post(server, input=[[9], [5, 6]], encoding_format="base64")).json()["data"]
    for one, other in zip(plain, packed, strict=True):
        assert list(struct.unpack("<2f", base64.b64decode(other["embedding"]))) == one["embedding"]


@pytest.mark.parametrize("given", ["Hi", ["Hi"], [72, 105], [[72, 105]]])
async def test_one_input_in_every_form_is_the_same_prompt(server: Any, given: Any) -> None:
    answer = await post(server, input=given)
    assert [request.prompt_token_ids for request in server.engine.submitted] == [[72, 105]]
    assert len(answer.json()["data"]) == 1


async def test_very_many_inputs_go_to_the_engine_a_batch_at_a_time_and_come_back_in_order(server: Any) -> None:
    sizes: list[int] = []
    submit = server.engine.submit
    server.engine.submit = lambda requests: sizes.append(len(requests)) or submit(requests)
    inputs = [[1 + number % 200, number % 250] for number in range(100)]
    answer = (await post(server, input=inputs)).json()
    assert [each["embedding"][1] for each in answer["data"]] == [as_float32([0, ids[0] / 7])[1] for ids in inputs]
    assert sizes == [8] * 12 + [4], "the engine has eight slots"
    assert answer["usage"]["prompt_tokens"] == 200


async def test_a_full_queue_is_waited_for_by_what_has_begun(server: Any) -> None:
    submit, calls = server.engine.submit, [0]

    def now_and_then(requests: Any) -> Any:
        calls[0] += 1
        if calls[0] in (2, 3, 4, 6):
            raise QueueFull("too much is waiting", retry_after=2.0)
        return submit(requests)

    server.engine.submit = now_and_then
    answer = await post(server, input=[[number] for number in range(30)])
    assert len(answer.json()["data"]) == 30
    assert calls == [8], "four batches, and four that were not taken"


async def test_a_full_queue_is_a_429(server: Any) -> None:
    server.engine.full = True
    answer = await post(server, input="Hi")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2"


async def test_a_conversation_is_embedded_as_the_template_writes_it(server: Any) -> None:
    await post(server, messages=USER)
    rendered = await server.http.post("/tokenize", json={"messages": USER, "add_generation_prompt": False})
    assert server.engine.submitted[0].prompt_token_ids == rendered.json()["tokens"]
    await post(server, messages=USER, add_generation_prompt=True)
    assert len(server.engine.submitted[1].prompt_token_ids) > len(server.engine.submitted[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({}, "input", "required"),
        ({"input": None}, "input", "required"),
        ({"input": []}, "input", "not empty"),
        ({"input": [[]]}, "input", "not empty"),
        ({"input": [1.5]}, "input", "must be"),
        ({"input": ""}, "input", "at least one token"),
        ({"input": [-1]}, "input", "0 to"),
        ({"input": [10**6]}, "input", "0 to"),
        ({"input": "Hi", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "Hi", "dimensions": 1}, "dimensions", "Matryoshka"),
        ({"input": "Hi", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "Hi", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ({"input": "Hi", "priority": 3}, "priority", "--scheduling-policy priority"),
        ({"input": "Hi", "embed_dtype": "float16"}, "embed_dtype", "not supported"),
        ({"input": "Hi", "endianness": "big"}, "endianness", "not supported"),
        ({"input": "Hi", "normalize": True, "use_activation": False}, "use_activation", "contradicts"),
        ({"input": "Hi", "normalize": "yes"}, "normalize", "bool"),
        ({"input": "Hi", "cache_salt": ""}, "cache_salt", "1 to"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": USER, "chat_template": "x"}, "chat_template", "--trust-request-chat-template"),
    ],
)
async def test_a_bad_value_is_a_400_that_names_the_field(
    server: Any, body: dict[str, Any], param: str, text: str
) -> None:
    error = await refused(server, **body)
    assert error["param"] == param
    assert text in error["message"]
    assert server.engine.submitted == []


async def test_a_prompt_that_is_too_long_names_both_numbers(server: Any) -> None:
    error = await refused(server, input=[[1] * 128, [1] * 129])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "129 tokens" in error["message"]
    assert "128 tokens" in error["message"]
    assert (await post(server, input=[[1] * 128])).status_code == 200, "nothing is generated behind it"
    error = await refused(server, input="x" * 70_000)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


async def test_a_prompt_is_cut_at_its_end_when_asked(server: Any) -> None:
    await post(server, input=["abcdef"], truncate_prompt_tokens=4)
    await post(server, input=[[1, 2, 3]], truncate_prompt_tokens=2)
    await post(server, input="y" * 300, truncate_prompt_tokens=-1)
    texts = [request.prompt_token_ids for request in server.engine.submitted]
    assert texts == [list(b"abcd"), [1, 2], list(b"y" * 128)]


async def test_dimensions_of_a_model_that_was_trained_for_them(embedder: Callable[..., Any]) -> None:
    some, any_size = embedder(matryoshka=(2, 4)), embedder(matryoshka=())
    assert (await post(some, input="Hi", dimensions=4)).status_code == 200
    assert some.engine.submitted[0].pooling.dimensions == 4
    assert "2, 4" in (await refused(some, input="Hi", dimensions=3))["message"]
    assert (await post(any_size, input="Hi", dimensions=3)).status_code == 200
    for wrong in (0, -1, 10**6):
        assert (await refused(any_size, input="Hi", dimensions=wrong))["param"] == "dimensions"


async def test_what_the_engine_gives_up_is_an_error(server: Any) -> None:
    server.pooling.error = ("the pooled vector was not finite", "corrupted")
    answer = await post(server, input=["a", "b"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "corrupted")
    assert len(server.engine.aborted) == 1, "the other one"
    server.pooling.error = ("too late", "queue_timeout")
    answer = await post(server, input="a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    server.pooling.error, server.pooling.finish = None, "abort"
    assert (await post(server, input="a")).status_code == 503


async def test_the_time_that_a_request_may_take(server: Any) -> None:
    server.engine.hang_after = 0
    answer = await server.http.post(PATH, json={"input": "a"}, headers={"x-request-timeout": "0.05"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
    assert len(server.engine.aborted) == 1


async def test_leaving_aborts_what_runs(server: Any) -> None:
    server.engine.hang_after = 3
    left, sent = asyncio.Event(), []
    raw = json.dumps({"input": [[number] for number in range(40)]}).encode()
    parts = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": PATH, "raw_path": PATH.encode(), "root_path": "", "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    visit = asyncio.ensure_future(server.app(scope, receive, send))
    await asyncio.wait_for(server.engine.hanging.wait(), 5)
    assert (await server.http.get("/load")).json() == {"server_load": 1}
    left.set()
    await asyncio.wait_for(visit, 5)
    assert len(server.engine.aborted) == len(server.engine.submitted) - 3
    assert (await server.http.get("/load")).json() == {"server_load": 0}


async def metric(server: Any, name: str, reason: str = "") -> float:
    text = (await server.http.get("/metrics")).text
    samples = [line.rpartition(" ") for line in text.splitlines() if line.startswith(f"inferplane:{name}")]
    return sum(float(value) for labels, _, value in samples if reason in labels)


async def test_inputs_are_counted(server: Any) -> None:
    await post(server, input=[[1, 2, 3], [4]])
    assert await metric(server, "request_success_total", reason='"stop"') == 2
    assert await metric(server, "request_prompt_tokens_sum") == 4
    assert await metric(server, "e2e_request_latency_seconds_count") == 2
    assert await metric(server, "request_queue_time_seconds_sum") == 0.5
    assert await metric(server, "prompt_tokens_by_source", reason='"local_compute"') == 2
    assert await metric(server, "prompt_tokens_cached") == 2


async def test_what_ends_early_is_counted_with_its_cause(server: Any) -> None:
    server.engine.full = True
    await post(server, input="a")
    assert await metric(server, "request_rejected", reason='"queue_requests"') == 1
    server.engine.full, server.pooling.error = False, ("no", "corrupted")
    await post(server, input=["a", "b"])
    assert await metric(server, "request_aborted", reason='"sibling"') == 2
    server.pooling.error, server.engine.die_after = None, 0
    await post(server, input=["a", "b", "c"])
    assert await metric(server, "request_aborted", reason='"engine"') == 3
    assert await metric(server, "request_aborted", reason='"disconnect"') == 0


async def test_a_request_is_one_span(server: Any) -> None:
    spans: list[Any] = []
    server.app.state.context.tracing = SimpleNamespace(record=spans.append)
    await post(server, input=[[1, 2, 3], [4]], request_id="r")
    server.pooling.finish = "abort"
    await post(server, input=[[1]])
    assert [(span.num_sequences, span.num_prompt_tokens, span.finish_reason) for span in spans] == [
        (2, 4, "stop"),
        (1, 1, "abort"),
    ]
    assert (spans[0].request_id, spans[0].model, spans[0].times.queue) == ("r", "tiny", 0.25)


async def test_cached_tokens_are_shown_where_that_is_switched_on(embedder: Callable[..., Any]) -> None:
    server = embedder(enable_prompt_tokens_details=True)
    usage = (await post(server, input=[[1, 2], [3, 4]])).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_without_a_tokenizer_only_tokens_are_taken(embedder: Callable[..., Any]) -> None:
    server = embedder(tokenizer=False)
    assert (await refused(server, input="Hi"))["code"] == "no_tokenizer"
    assert (await refused(server, messages=USER))["code"] == "no_chat_template"
    assert (await post(server, input=[1, 2])).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/invocations"])
async def test_a_model_that_embeds_generates_nothing(server: Any, path: str) -> None:
    body: dict[str, Any] = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": USER}
    answer = await server.http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_task"
    assert "--runner generate" in answer.json()["error"]["message"]


async def test_a_model_that_generates_embeds_nothing(make: Callable[..., Any]) -> None:
    error = await refused(make(), input="Hi")
    assert error["code"] == "unsupported_task"
    assert "--runner pooling" in error["message"]


async def test_the_model_is_checked(server: Any) -> None:
    answer = await post(server, model="other", input="Hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert (await post(server, model="tiny-alias", input="Hi")).json()["model"] == "tiny-alias"


async def test_the_description_knows_the_route(server: Any) -> None:
    document = (await server.http.get("/openapi.json")).json()
    operation = document["paths"][PATH]["post"]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/EmbeddingList"}
    assert {"EmbeddingBody", "EmbeddingChatBody"} <= document["components"]["schemas"].keys()
