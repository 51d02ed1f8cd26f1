"""A client's bad value is a 400 that names the field, never a 500; an unknown field is ignored with one warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

USER = [{"role": "user", "content": "Hi"}]

BOTH = [
    ({"temperature": "1"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": 1e400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": 10**30}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5000}, "max_tokens"),
    ({"min_tokens": 20, "max_tokens": 3}, "min_tokens"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"n": 10**9}, "n"),
    ({"seed": "abc"}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stop": ["x"] * 1000}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids.0"),
    ({"logit_bias": {"hello": 1}}, "logit_bias"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"prompt_logprobs": 6}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"priority": 1}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "a/b"}, "cache_salt"),
    ({"cache_salt": "a@b"}, "cache_salt"),
    ({"cache_salt": "x" * 129}, "cache_salt"),
    ({"request_id": "a\nb"}, "request_id"),
    ({"model": 5}, "model"),
    ({"ignore_eos": "no"}, "ignore_eos"),
    ({"use_beam_search": 1}, "use_beam_search"),
    ({"use_beam_search": True, "stream": True}, "stream"),
    ({"use_beam_search": True, "n": 2, "stop": ["a"]}, "stop"),
    ({"use_beam_search": True, "n": 2, "bad_words": ["a"]}, "bad_words"),
    ({"use_beam_search": True, "n": 2, "presence_penalty": 1}, "presence_penalty"),
    ({"use_beam_search": True, "n": 257}, "n"),
    ({"use_beam_search": True, "n": 0}, "n"),
    ({"use_beam_search": True, "length_penalty": "1"}, "length_penalty"),
    ({"use_beam_search": True, "length_penalty": 1e400}, "length_penalty"),
    ({"use_beam_search": True, "early_stopping": "sometimes"}, "early_stopping"),
    ({"use_beam_search": True, "logprobs_mode": "raw_logits"}, "logprobs_mode"),
    ({"length_penalty": 0.5}, "length_penalty"),
    ({"early_stopping": True}, "early_stopping"),
    ({"best_of": 3}, "best_of"),
    ({"bad_words": "x"}, "bad_words"),
    ({"bad_words": [""]}, "bad_words.0"),
    ({"bad_words": [" "]}, "bad_words"),
    ({"bad_words": [1]}, "bad_words.0"),
    ({"bad_words": ["x"] * 257}, "bad_words"),
    ({"bad_words": ["x" * 257]}, "bad_words.0"),
    ({"allowed_token_ids": [97], "bad_words": ["a"]}, "allowed_token_ids"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"logprob_token_ids": [1] * 129}, "logprob_token_ids"),
    ({"logprob_token_ids": ["1"]}, "logprob_token_ids.0"),
    ({"logprobs_mode": "raw"}, "logprobs_mode"),
    ({"repetition_detection": 3}, "repetition_detection"),
    ({"repetition_detection": {"max_pattern_size": "3"}}, "repetition_detection.max_pattern_size"),
    ({"repetition_detection": {"max_pattern_size": 2000}}, "repetition_detection.max_pattern_size"),
    (
        {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3}},
        "repetition_detection.min_pattern_size",
    ),
    ({"stream_interval": 0}, "stream_interval"),
    ({"stream_interval": "2"}, "stream_interval"),
    ({"vllm_xargs": {"top_h": 0.5}}, "vllm_xargs.top_h"),
    ({"vllm_xargs": [1]}, "vllm_xargs"),
    ({"logits_processors": ["a.B"]}, "logits_processors"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"guided_json": {}}, "guided_json"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]
COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": [-1], "echo": True}, "prompt"),
    ({"prompt": "a" * 128}, "prompt"),
    ({"suffix": "end"}, "suffix"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": "1"}, "logprobs"),
]
CHAT = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"content": "Hi"}]}, "messages.0.role"),
    ({"messages": [{"role": 1, "content": "Hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": "a" * 200}]}, "messages"),
    ({"max_completion_tokens": 5000}, "max_completion_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 6}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"tools": []}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": []}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"chat_template": "x"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
    ({"documents": "x"}, "documents"),
]


def check(answer: Any, field: str) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field, error
    assert error["message"].startswith(field)


@pytest.mark.parametrize(("body", "field"), BOTH + COMPLETIONS, ids=str)
async def test_completions_name_the_field(shared: Any, body: dict[str, Any], field: str) -> None:
    raw = {"model": "tiny", "prompt": "Hi", **body}
    check(await post(shared, "/v1/completions", raw), field)
    assert shared.engine.submitted == []


@pytest.mark.parametrize(("body", "field"), BOTH + CHAT, ids=str)
async def test_chat_names_the_field(shared: Any, body: dict[str, Any], field: str) -> None:
    raw = {"model": "tiny", "messages": USER, **body}
    check(await post(shared, "/v1/chat/completions", raw), field)
    assert shared.engine.submitted == []


async def post(server: Any, path: str, body: dict[str, Any]) -> Any:
    import json

    text = json.dumps(body).replace("Infinity", "1e400")
    return await server.http.post(path, content=text, headers={"content-type": "application/json"})


@pytest.mark.parametrize(("body", "beginning"), [
    ({"temperature": "1"}, "temperature='1': "),
    ({"top_k": 1.5}, "top_k=1.5: "),
    ({"stop_token_ids": ["x"]}, "stop_token_ids.0='x': "),
    ({"cache_salt": "a/b"}, "cache_salt='a/b': "),
    ({"stop": ""}, "stop=['']: "),
    ({"stop_token_ids": [-1]}, "stop_token_ids=[-1]: "),
    ({"temperature": "1" * 101}, "temperature: "),
    ({"temperature": [1]}, "temperature: "),
    ({"top_k": 10**30}, "top_k: "),
])  # fmt: skip
async def test_an_error_shows_a_short_value(shared: Any, body: dict[str, Any], beginning: str) -> None:
    error = (await shared.complete(**body)).json()["error"]
    assert error["message"].startswith(beginning), error


async def test_two_endings_of_a_prompt_contradict(shared: Any) -> None:
    answer = await shared.chat(add_generation_prompt=True, continue_final_message=True)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("continue_final_message", "invalid_value")
    assert "add_generation_prompt" in error["message"]


async def test_a_prompt_that_is_too_long_names_both_numbers(shared: Any) -> None:
    error = (await shared.complete(prompt="a" * 100, max_tokens=100)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "100" in error["message"]
    assert "128" in error["message"]
    assert (error["param"], error["message"].partition(":")[0]) == ("max_tokens", "max_tokens=100")
    # litellm and others know the failure by these words.
    assert "this model's maximum context length is 128 tokens" in error["message"]


async def test_a_prompt_that_fills_the_context_is_what_is_too_long(shared: Any) -> None:
    error = (await shared.complete(prompt="a" * 130, max_tokens=6)).json()["error"]
    assert error["param"] == "prompt"
    assert error["message"].startswith(
        "prompt=130: the prompt is too long: it has 130 tokens, and this model's maximum"
    )


async def test_bad_keys_of_a_bias_are_listed(shared: Any) -> None:
    error = (await shared.complete(logit_bias={"hello": 1, "5": 1, "-3": 1, "٣": 1})).json()["error"]
    assert all(key in error["message"] for key in ("'hello'", "'-3'", "'٣'"))
    assert "'5'" not in error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100000], ids=repr)
async def test_a_body_that_is_no_object(shared: Any, raw: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        answer = await shared.http.post(path, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_other_types_than_json_are_refused(shared: Any) -> None:
    answer = await shared.http.post("/v1/completions", content=b'{"prompt": "Hi"}')
    assert answer.status_code == 415
    assert "Content-Type" in answer.json()["error"]["message"]


async def test_an_unknown_field_is_ignored_and_warned_about_once(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="inferplane"):
        for _ in range(2):
            assert (await server.complete(tempratura=0.5, other={"deep": [1]})).status_code == 200
    (record,) = [record for record in caplog.records if "unknown fields" in record.message]
    assert "'tempratura'" in record.message
    assert "'other'" in record.message


async def test_an_unknown_model_is_a_404(shared: Any) -> None:
    for answer in (await shared.complete(model="gpt"), await shared.chat(model="gpt")):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


def fields_of_both() -> list[str]:
    from inferplane.server.schema import ChatBody, CompletionBody

    return sorted({*ChatBody.model_fields, *CompletionBody.model_fields} - {"stream"})


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.dictionaries(st.sampled_from(fields_of_both()), JSON, max_size=3))
async def test_no_value_of_any_field_is_a_server_error(shared: Any, body: dict[str, Any]) -> None:
    for path, base in (("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", {"messages": USER})):
        answer = await post(shared, path, {**base, **body})
        assert answer.status_code in (200, 400, 404), (body, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"]["message"]
