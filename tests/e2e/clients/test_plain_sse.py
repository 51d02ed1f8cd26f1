"""What small clients do without a library: a POST, lines that begin with `data: `, JSON up to `[DONE]`."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def lines(scripted: Any, route: str, body: dict[str, Any]) -> Iterator[str]:
    """As they come off the socket; the connection is one of a plain HTTP/1.1 client."""
    where = urlsplit(scripted.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {scripted.key}", "Content-Type": "application/json"}
        connection.request("POST", f"{where.path}/{route}", json.dumps({"model": scripted.model, **body}), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(json.load(answer)["error"]["message"])
        assert answer.getheader("content-type", "").partition(";")[0] == "text/event-stream"
        for line in answer:
            yield line.decode().rstrip("\r\n")
    finally:
        connection.close()


def events(scripted: Any, route: str, body: dict[str, Any]) -> list[Any]:
    """The reader of a page of code: no event names, no comments, no joined lines."""
    found = []
    for line in lines(scripted, route, body):
        if not line:
            continue
        assert line.startswith("data: ")
        if line == "data: [DONE]":
            return found
        found.append(json.loads(line.removeprefix("data: ")))
    raise AssertionError("the stream ended without [DONE]")


def test_chat(scripted: Any) -> None:
    *parts, last = events(scripted, "chat/completions", {**CHAT, **WITH_USAGE})
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == scripted.answer
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], scripted.num_tokens)


def test_completions_of_two_prompts(scripted: Any) -> None:
    texts = ["", ""]
    for event in events(scripted, "completions", {"prompt": ["a", "b"], "max_tokens": 100, **WITH_USAGE}):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [scripted.answer] * 2


def test_nothing_follows_the_end(scripted: Any) -> None:
    assert list(lines(scripted, "chat/completions", {**CHAT, "stream": True}))[-2:] == ["data: [DONE]", ""]


def test_a_refused_stream_is_an_error_with_a_status(scripted: Any) -> None:
    with pytest.raises(RuntimeError, match="temperature=9"):
        events(scripted, "chat/completions", {**CHAT, "stream": True, "temperature": 9})
