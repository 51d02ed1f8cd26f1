"""The routes beside generation: rendering, aliases, what only some servers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from inferplane.errors import EngineDead

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = [{"role": "user", "content": "a"}]
CHAT_IDS = [257, *b"user\na", 258, 10, 257, *b"assistant\n"]


async def test_a_chat_is_rendered_as_it_would_be_sent(server: Any) -> None:
    body = {"messages": MESSAGES, "temperature": 0.5, "model": "tiny-alias", "request_id": "r"}
    rendered = (await server.http.post("/v1/chat/completions/render", json=body)).json()
    assert (rendered["request_id"], rendered["model"]) == ("chatcmpl-r", "tiny-alias")
    assert rendered["prompt"] == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert rendered["token_ids"] == CHAT_IDS
    assert rendered["max_model_len"] == 128
    assert server.engine.submitted == []
    await server.http.post("/v1/chat/completions", json=body)
    (request,) = server.engine.submitted
    assert request.prompt_token_ids == rendered["token_ids"]
    assert rendered["sampling_params"]["temperature"] == request.params.temperature == 0.5
    assert rendered["sampling_params"]["top_p"] == 1.0, "what nobody has set is told too"
    assert rendered["sampling_params"]["max_tokens"] == request.params.max_tokens == 128 - len(CHAT_IDS)


async def test_every_prompt_of_a_completion_is_rendered(server: Any) -> None:
    answer = await server.http.post("/v1/completions/render", json={"prompt": [[72, 105], [258]], "max_tokens": 3})
    first, second = answer.json()
    assert (first["prompt"], first["token_ids"]) == ("Hi", [72, 105])
    assert (second["prompt"], second["token_ids"]) == ("<|im_end|>", [258])
    assert first["sampling_params"]["max_tokens"] == 3


async def test_rendering_needs_no_engine(server: Any) -> None:
    server.engine.state, server.engine.failure = "dead", EngineDead("gone", code="engine.dead")
    rendered = await server.http.post("/v1/chat/completions/render", json={"messages": MESSAGES})
    assert (rendered.status_code, rendered.json()["token_ids"]) == (200, CHAT_IDS)
    assert rendered.json()["max_model_len"] == 256


async def test_a_prompt_that_is_too_long_is_shown_all_the_same(server: Any) -> None:
    answer = await server.http.post("/v1/completions/render", json={"prompt": "a" * 500})
    assert len(answer.json()[0]["token_ids"]) == 500


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions/render", {}, "prompt"),
        ("/v1/completions/render", {"prompt": [5, 10**6]}, "prompt"),
        ("/v1/completions/render", {"prompt": "a", "temperature": -1}, "temperature"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ("/invocations", {"model": "tiny"}, "messages"),
        ("/invocations", {"messages": 5}, "messages"),
        ("/invocations", {"prompt": 5}, "prompt"),
        ("/invocations", [], None),
    ],
)
async def test_bad_values(server: Any, path: str, body: Any, field: str) -> None:
    answer = await server.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field or "messages")


async def test_invocations_answer_what_the_body_asks(server: Any) -> None:
    chat = (await server.http.post("/invocations", json={"messages": MESSAGES})).json()
    assert chat["object"] == "chat.completion"
    text = (await server.http.post("/invocations", json={"prompt": "Hi"})).json()
    assert text["object"] == "text_completion"
    stream = await server.http.post("/invocations", json={"prompt": "messages", "stream": True})
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_the_tokenizer_is_told_only_where_wanted(make: Callable[..., Any], server: Any) -> None:
    assert (await server.http.get("/tokenizer_info")).status_code == 404
    told = (await make(enable_tokenizer_info_endpoint=True).http.get("/tokenizer_info")).json()
    assert "im_start" in told["chat_template"]
    assert isinstance(told["tokenizer_class"], str)
    none = await make(enable_tokenizer_info_endpoint=True, tokenizer=False).http.get("/tokenizer_info")
    assert (none.status_code, none.json()["error"]["code"]) == (400, "no_tokenizer")


async def test_developers_reset_the_prefix_cache(make: Callable[..., Any], server: Any) -> None:
    assert (await server.http.post("/reset_prefix_cache")).status_code == 404
    called = []

    async def control(name: str, **arguments: Any) -> Any:
        called.append((name, arguments))
        return True

    mine = make(server_dev_mode=True)
    mine.engine.control = control
    assert (await mine.http.post("/reset_prefix_cache")).json() == {"result": True}
    assert called == [("reset_prefix_cache", {})]
    page = await mine.http.post("/reset_prefix_cache", headers={"origin": "https://evil.example"})
    assert (page.status_code, len(called)) == (403, 1)
    mine.engine.state = "dead"
    assert (await mine.http.post("/reset_prefix_cache")).status_code == 503


async def test_the_startup_timeline(server: Any) -> None:
    assert (await server.http.get("/startup")).json() == {
        "state": "ready",
        "front_end": [{"phase": "probe", "seconds": 0.25}],
        "engine": [{"phase": "weights", "seconds": 0.5}],
    }
