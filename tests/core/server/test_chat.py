"""/v1/chat/completions, byte for byte: chunks, usage, log-probabilities, roles and echoes."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO, WORLD = 259, 260
EOS = 256
PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
NUM_PROMPT = len("user\nHi") + len("\n") + len("assistant\n") + 3

HEAD = '{"id":"chatcmpl-me","object":"chat.completion.chunk","created":0,"model":"tiny","choices":'


def fixed(text: str) -> str:
    return re.sub(r'"created":\d+', '"created":0', text)


def chunk(choice: str, rest: str = "") -> str:
    return f"data: {HEAD}[{choice}]{rest}}}\n\n"


def delta(content: str, index: int = 0, finish: str = "null", logprobs: str = "null", role: str = "") -> str:
    ending = "" if finish == "null" else ',"stop_reason":null'
    return (
        f'{{"index":{index},"delta":{{{role}"content":{json.dumps(content, ensure_ascii=False)}}},'
        f'"logprobs":{logprobs},"finish_reason":{finish}{ending}}}'
    )


def opening(index: int = 0) -> str:
    return delta("", index, role='"role":"assistant",')


async def test_a_stream_byte_for_byte(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, EOS]
    answer = await server.chat(stream=True, request_id="me")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    expected = [chunk(opening()), chunk(delta("Hello")), chunk(delta(" world")), chunk(delta("", finish='"stop"'))]
    assert fixed(answer.text) == "".join(expected) + "data: [DONE]\n\n"


async def test_the_prompt_is_the_template_of_the_messages(server: Any) -> None:
    await server.chat()
    (request,) = server.engine.submitted
    letters = PROMPT.replace("<|im_start|>", "\x01").replace("<|im_end|>", "\x02")
    assert request.prompt_token_ids == [{1: 257, 2: 258}.get(byte, byte) for byte in letters.encode()]
    assert len(request.prompt_token_ids) == NUM_PROMPT
    assert request.params.max_tokens == 128 - NUM_PROMPT, "chat fills the context by default"
    assert request.eos_token_ids == (EOS,)


@pytest.mark.parametrize("forced", [False, True])
async def test_usage_in_the_last_chunk(make: Callable[..., Any], forced: bool) -> None:
    server = make(enable_force_include_usage=forced)
    server.engine.outputs[None] = [HELLO]
    options = {} if forced else {"stream_options": {"include_usage": True}}
    answer = await server.chat(stream=True, request_id="me", **options)
    rest = ',"usage":null'
    usage = f'{{"prompt_tokens":{NUM_PROMPT},"total_tokens":{NUM_PROMPT + 1},"completion_tokens":1'
    expected = [
        chunk(opening(), rest),
        chunk(delta("Hello", finish='"length"'), rest),
        f'data: {HEAD}[],"usage":{usage},"prompt_tokens_details":null}}}}\n\n',
        "data: [DONE]\n\n",
    ]
    assert fixed(answer.text) == "".join(expected)


async def test_usage_on_every_chunk_with_details(make: Callable[..., Any]) -> None:
    server = make(enable_prompt_tokens_details=True)
    server.engine.outputs[None] = [HELLO, WORLD]
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await server.chat(stream=True, stream_options=options)
    usages = [json.loads(line[6:])["usage"] for line in answer.text.split("\n\n") if line.startswith("data: {")]
    assert [usage["completion_tokens"] for usage in usages] == [0, 1, 2, 2]
    assert [usage["total_tokens"] for usage in usages] == [NUM_PROMPT + count for count in (0, 1, 2, 2)]
    assert usages[-1]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_two_choices_stream_with_their_indices(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    answer = await server.chat(stream=True, request_id="me", n=2, temperature=1.0, seed=5)
    expected = [
        chunk(opening(0)),
        chunk(opening(1)),
        chunk(delta("Hello", 0)),
        chunk(delta("Hello", 1)),
        chunk(delta(" world", 0, '"length"')),
        chunk(delta(" world", 1, '"length"')),
    ]
    assert fixed(answer.text) == "".join(expected) + "data: [DONE]\n\n"
    first, second = server.engine.submitted
    assert (first.seed, first.params.n) == (5, 1)
    assert first.seed != second.seed
    assert first.request_id != second.request_id


async def test_a_whole_answer(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD, EOS]
    answer = await server.chat(request_id="me")
    body = json.loads(fixed(answer.text))
    message = {
        "role": "assistant",
        "content": "Hello world",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    assert body == {
        "id": "chatcmpl-me",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            "prompt_tokens": NUM_PROMPT,
            "total_tokens": NUM_PROMPT + 3,
            "completion_tokens": 3,
            "prompt_tokens_details": None,
        },
        "prompt_logprobs": None,
    }
    ChatCompletion.model_validate_json(answer.text, strict=True)


async def test_an_answer_goes_out_under_the_name_that_was_asked_for(server: Any) -> None:
    answer = await server.chat(model="tiny-alias")
    assert answer.json()["model"] == "tiny-alias"
    nameless = await server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
    assert nameless.json()["model"] == "tiny"


async def test_logprobs_with_bytes(server: Any) -> None:
    server.engine.outputs[None] = [264, WORLD]
    answer = await server.chat(logprobs=True, top_logprobs=2)
    (first, second) = answer.json()["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["bytes"]) == ("é", [0xC3, 0xA9])
    assert first["logprob"] == pytest.approx(math.log(0.5))
    tops = [(top["token"], top["bytes"]) for top in first["top_logprobs"]]
    assert tops == [("é", [0xC3, 0xA9]), ("日本", list("日本".encode()))]
    assert [top["logprob"] for top in second["top_logprobs"]] == pytest.approx([math.log(0.5), math.log(0.25)])
    ChatCompletion.model_validate_json(answer.text, strict=True)


async def test_logprobs_without_top(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    answer = await server.chat(logprobs=True)
    (only,) = answer.json()["choices"][0]["logprobs"]["content"]
    assert (only["token"], only["top_logprobs"]) == ("Hello", [])


async def test_streamed_logprobs_join_to_the_whole_ones(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, *"日".encode(), WORLD]
    asked = {"logprobs": True, "top_logprobs": 1}
    whole = (await server.chat(**asked)).json()["choices"][0]
    lines = [line[6:] for line in (await server.chat(stream=True, **asked)).text.split("\n\n") if "{" in line]
    chunks = [ChatCompletionChunk.model_validate_json(line, strict=True) for line in lines]
    entries = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.model_dump() for entry in entries] == whole["logprobs"]["content"]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole["message"]["content"]
    assert whole["message"]["content"] == "Hello日 world"


async def test_tokens_as_ids(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    answer = await server.chat(logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
    (only,) = answer.json()["choices"][0]["logprobs"]["content"]
    assert [only["token"], *(top["token"] for top in only["top_logprobs"])] == [
        "token_id:259",
        "token_id:259",
        "token_id:260",
    ]


async def test_token_ids_in_answers(server: Any) -> None:
    server.engine.outputs[None] = [HELLO, WORLD]
    whole = (await server.chat(return_token_ids=True)).json()
    assert whole["choices"][0]["token_ids"] == [HELLO, WORLD]
    assert len(whole["prompt_token_ids"]) == NUM_PROMPT
    text = (await server.chat(return_token_ids=True, stream=True)).text
    first, *others = [json.loads(line[6:]) for line in text.split("\n\n") if "{" in line]
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [other["choices"][0]["token_ids"] for other in others] == [[HELLO], [WORLD]]


async def test_prompt_logprobs(server: Any) -> None:
    answer = await server.chat(prompt_logprobs=1)
    first, second, *rest = answer.json()["prompt_logprobs"]
    assert first is None
    assert len(rest) == NUM_PROMPT - 2
    expected = {"logprob": pytest.approx(math.log(0.5)), "rank": 1, "decoded_token": "u"}
    assert second == {str(ord("u")): expected}


async def test_the_last_message_is_continued_and_echoed(server: Any) -> None:
    server.engine.outputs[None] = [WORLD]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    asked = {"messages": messages, "continue_final_message": True, "echo": True}
    answer = await server.chat(**asked)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
    ids = server.engine.submitted[0].prompt_token_ids
    assert bytes(ids[-5:]) == b"Hello", "the prompt ends inside the last message"
    streamed = await server.chat(stream=True, request_id="me", **asked)
    expected = [chunk(opening()), chunk(delta("Hello")), chunk(delta(" world", finish='"length"'))]
    assert fixed(streamed.text) == "".join(expected) + "data: [DONE]\n\n"


async def test_parts_of_text_are_one_text(server: Any) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    await server.chat(messages=[{"role": "user", "content": parts}])
    assert bytes(i for i in server.engine.submitted[0].prompt_token_ids if i < 256).startswith(b"user\nH")


async def test_a_template_of_the_request_needs_trust(make: Callable[..., Any]) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ extra }}"
    refused = await make().chat(chat_template=template)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
    server = make(trust_request_chat_template=True)
    answer = await server.chat(chat_template=template, chat_template_kwargs={"extra": "!"})
    assert answer.status_code == 200
    assert bytes(server.engine.submitted[0].prompt_token_ids) == b"Hi!"


async def test_max_completion_tokens_wins(server: Any) -> None:
    await server.chat(max_tokens=9, max_completion_tokens=3)
    assert server.engine.submitted[0].params.max_tokens == 3


async def test_neutral_values_of_later_features_are_accepted(server: Any) -> None:
    neutral = {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    assert (await server.chat(**neutral, stop=None, logit_bias={}, user="me", store=False)).status_code == 200


async def test_defaults_of_the_model_and_the_client_over_them(make: Callable[..., Any]) -> None:
    server = make(generation_config={"temperature": 0.25, "top_k": 7})
    await server.chat()
    await server.chat(temperature=0.5, top_k=2)
    ours, theirs = (request.params for request in server.engine.submitted)
    assert (ours.temperature, ours.top_k) == (0.25, 7)
    assert (theirs.temperature, theirs.top_k) == (0.5, 2)
