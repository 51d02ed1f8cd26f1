"""/v1/completions, byte for byte: prompts of every form, echo, log-probabilities, stop strings."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from openai.types import Completion

HELLO, WORLD, STOP, ST, OP = 259, 260, 261, 262, 263
EOS = 256
HEAD = '{"id":"cmpl-me","object":"text_completion","created":0,"model":"tiny","choices":'
HALF = math.log(0.5)


def fixed(text: str) -> str:
    return re.sub(r'"created":\d+', '"created":0', text)


def chunk(text: str, finish: str = "null", stop: str = "null", index: int = 0, usage: str = "") -> str:
    return (
        f'data: {HEAD}[{{"index":{index},"text":{json.dumps(text, ensure_ascii=False)},"logprobs":null,'
        f'"finish_reason":{finish},"stop_reason":{stop}}}]{usage}}}\n\n'
    )


def chunks_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]


async def test_a_stream_byte_for_byte(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, EOS]
    answer = await server.complete(stream=True, request_id="me")
    expected = chunk("Hello") + chunk(" world") + chunk("", '"stop"')
    assert fixed(answer.text) == expected + "data: [DONE]\n\n"


async def test_a_stream_with_usage_byte_for_byte(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    answer = await server.complete(stream=True, request_id="me", stream_options={"include_usage": True})
    usage = '"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":null}'
    expected = chunk("Hello", '"length"', usage=',"usage":null') + f"data: {HEAD}[],{usage}}}\n\n"
    assert fixed(answer.text) == expected + "data: [DONE]\n\n"


async def test_a_whole_answer(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, EOS]
    answer = await server.complete(request_id="me")
    choice = {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": None}
    assert json.loads(fixed(answer.text)) == {
        "id": "cmpl-me",
        "object": "text_completion",
        "created": 0,
        "model": "tiny",
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage,
    }
    assert server.engine.submitted[0].params.max_tokens == 16, "the default of completions"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", [[72, 105]]),
        (["Hi", "a"], [[72, 105], [97]]),
        ([72, 105], [[72, 105]]),
        ([[72, 105], [97]], [[72, 105], [97]]),
    ],
)
async def test_prompts_of_every_form(server: Any, prompt: Any, expected: list[list[int]]) -> None:
    answer = await server.complete(prompt=prompt)
    assert [request.prompt_token_ids for request in server.engine.submitted] == expected
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(len(expected)))
    assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_one_choice_per_prompt_times_n(server: Any) -> None:
    server.engine.outputs |= {(97,): [HELLO], (98,): [WORLD]}
    answer = await server.complete(prompt=["a", "b"], n=2)
    assert [choice["text"] for choice in answer.json()["choices"]] == ["Hello", "Hello", " world", " world"]
    assert answer.json()["usage"]["prompt_tokens"] == 2, "a prompt counts once"
    assert answer.json()["usage"]["completion_tokens"] == 4


async def test_a_stop_string_split_over_tokens_is_withheld_and_cut(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, ST, OP, WORLD]
    answer = await server.complete(stream=True, request_id="me", stop=["STOP", "never"])
    texts = [found["choices"][0]["text"] for found in chunks_of(answer.text)]
    assert "".join(texts) == "Hello "
    assert fixed(answer.text).endswith(chunk(texts[-1], '"stop"', '"STOP"') + "data: [DONE]\n\n")
    assert len(server.engine.aborted) == 1, "the engine was told to stop"
    whole = (await server.complete(stop="STOP")).json()
    assert (whole["choices"][0]["text"], whole["choices"][0]["stop_reason"]) == ("Hello ", "STOP")
    assert whole["usage"]["completion_tokens"] == 3


async def test_a_stop_string_may_stay(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, ST, OP, WORLD]
    answer = await server.complete(stop="STOP", include_stop_str_in_output=True)
    assert answer.json()["choices"][0]["text"] == "Hello STOP"


async def test_a_stop_string_in_one_of_two_sequences(server: Any) -> None:
    server.engine.outputs |= {(97,): [HELLO, STOP, WORLD, WORLD], (98,): [WORLD, WORLD, WORLD]}
    answer = await server.complete(prompt=["a", "b"], stop="STOP")
    assert [choice["text"] for choice in answer.json()["choices"]] == ["Hello", " world world world"]
    assert [choice["finish_reason"] for choice in answer.json()["choices"]] == ["stop", "length"]


async def test_the_id_of_a_stop_token_is_the_reason(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, STOP]
    choice = (await server.complete(stop_token_ids=[WORLD])).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello", "stop", WORLD)


async def test_incomplete_characters_are_held_back(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, *"é😀".encode()]
    answer = await server.complete(stream=True)
    texts = [found["choices"][0]["text"] for found in chunks_of(answer.text)]
    assert texts == ["Hello", "é", "😀"]


async def test_logprobs_have_offsets(server: Any) -> None:
    server.engine.outputs[None] = [264, HELLO, WORLD]
    answer = await server.complete(logprobs=1)
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["é", "Hello", " world"]
    assert logprobs["text_offset"] == [0, 1, 6]
    assert logprobs["token_logprobs"] == pytest.approx([HALF] * 3)
    assert logprobs["top_logprobs"] == [{"é": HALF}, {"Hello": HALF}, {" world": HALF}]
    Completion.model_validate_json(answer.text, strict=True)


async def test_the_sampled_token_is_always_among_the_top(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    logprobs = (await server.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"Hello": HALF}]


async def test_minus_infinity_has_a_floor(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deltas = server.engine.deltas

    def impossible(request: Any) -> Any:
        found = deltas(request)
        found[0].logprobs[0].logprob = -math.inf
        found[0].logprobs[0].top_logprobs = [0.0]
        found[0].logprobs[0].top_ids = [WORLD]
        return found

    monkeypatch.setattr(server.engine, "deltas", impossible)
    server.engine.outputs[None] = [HELLO]
    logprobs = (await server.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{" world": 0.0, "Hello": -9999.0}]


async def test_echo_scores_the_prompt(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    choice = (await server.complete(echo=True, logprobs=1)).json()["choices"][0]
    assert choice["text"] == "HiHello"
    assert choice["logprobs"]["tokens"] == ["H", "i", "Hello"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"] == [None, {"i": HALF}, {"Hello": HALF}]
    only = (await server.complete(echo=True, logprobs=1, max_tokens=0)).json()
    assert only["choices"][0]["text"] == "Hi"
    assert only["choices"][0]["logprobs"]["tokens"] == ["H", "i"]
    assert only["usage"]["completion_tokens"] == 0


async def test_echo_in_a_stream(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    answer = await server.complete(prompt=[72, 105], echo=True, logprobs=0, stream=True)
    first, second = (found["choices"][0] for found in chunks_of(answer.text))
    assert (first["text"], second["text"]) == ("HiHello", " world")
    assert first["logprobs"]["tokens"] == ["H", "i", "Hello"]
    assert second["logprobs"]["text_offset"] == [7]


async def test_prompt_logprobs_and_token_ids(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    choice = (await server.complete(prompt_logprobs=0, return_token_ids=True)).json()["choices"][0]
    entry = {"logprob": pytest.approx(HALF), "rank": 1, "decoded_token": "i"}
    assert choice["prompt_logprobs"] == [None, {"105": entry}]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([72, 105], [HELLO])


async def test_a_bias_is_clamped_and_minus_one_is_no_seed(server: Any) -> None:
    await server.complete(logit_bias={"97": 1000, "98": -200.5}, seed=-1)
    assert server.engine.submitted[0].params.logit_bias == {97: 100.0, 98: -100.0}


async def test_a_long_prompt_is_truncated_from_the_left_on_demand(server: Any) -> None:
    await server.complete(prompt="a" * 200 + "bc", truncate_prompt_tokens=3)
    assert bytes(server.engine.submitted[0].prompt_token_ids) == b"abc"


async def test_a_model_without_tokenizer_takes_and_gives_ids(make: Any) -> None:
    server = make(tokenizer=False)
    server.engine.outputs[None] = [1, 2]
    refused = await server.complete(prompt="text")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    answer = await server.complete(prompt=[5, 6], return_token_ids=True, logprobs=1)
    choice = answer.json()["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["logprobs"]["tokens"]) == (
        "",
        [1, 2],
        ["token_id:1", "token_id:2"],
    )


async def test_a_default_length_fits_the_context_and_an_asked_one_must(make: Any) -> None:
    server = make(generation_config={"max_new_tokens": 1000})
    assert (await server.complete(prompt="a" * 120)).status_code == 200
    assert server.engine.submitted[0].params.max_tokens == 8
    assert (await server.complete(prompt="a" * 120, max_tokens=9)).status_code == 400
    assert (await server.complete(prompt="a" * 128)).status_code == 400
