"""How much of everything a request may hold."""

from __future__ import annotations

from typing import Any

import pytest

MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [MESSAGE] * 16385}, "messages"),
        ("/v1/completions", {"prompt": ["a"] * 16385}, "prompt"),
        ("/v1/completions", {"prompt": [[1]] * 16385}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 5, "n": 4000}, "n"),
        ("/v1/completions", {"prompt": "a", "stop": ["a"] * 65}, "stop"),
        ("/v1/completions", {"prompt": "a", "stop": "a" * 1025}, "stop"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(16385)}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": [{**MESSAGE, "role": "r" * 65}]}, "messages.0.role"),
        ("/v1/chat/completions", {"messages": [MESSAGE], "request_id": "r" * 129}, "request_id"),
        ("/v1/chat/completions", {"messages": [MESSAGE], "cache_salt": "r" * 129}, "cache_salt"),
    ],
)
async def test_too_many_and_too_long(shared: Any, path: str, body: dict[str, Any], param: str) -> None:
    answer = await shared.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(answer.text) < 1000


async def test_as_much_as_is_allowed(shared: Any) -> None:
    stop = ["x" * 1024] * 64
    assert (await shared.complete(stop=stop)).status_code == 200
    # More tokens than the context holds are refused for their length, not for their number.
    answer = await shared.http.post("/v1/completions", json={"prompt": [1] * 20000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("depth", "status"), [(150, 200), (250, 400), (10**6, 400)])
async def test_nesting(shared: Any, depth: int, status: int) -> None:
    body = b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": %s}}'
    nested = b"[" * depth + b"]" * depth
    headers = {"content-type": "application/json"}
    answer = await shared.http.post("/v1/chat/completions", content=body % nested, headers=headers)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["code"] == "invalid_json"
