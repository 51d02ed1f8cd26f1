"""The opt-in `metrics` of an answer, as vLLM shapes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferplane.metrics import RequestTimes
from inferplane.server.generation import request_metrics

FIELDS = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}


def test_times_become_what_vllm_tells() -> None:
    times = RequestTimes(
        queue=0.0123, time_to_first_token=0.0975, prefill=0.0852, decode=1.2405, inference=1.3257, e2e=1.338,
        num_tokens=128,
    )  # fmt: skip
    metrics = request_metrics(times)
    assert (metrics.queue_time_ms, metrics.time_to_first_token_ms, metrics.generation_time_ms) == (12.3, 85.2, 1240.5)
    assert metrics.mean_itl_ms == pytest.approx(1240.5 / 127, abs=1e-3)
    assert metrics.tokens_per_second == pytest.approx(128 / 1.3257, abs=1e-3)
    nothing = request_metrics(RequestTimes(None, None, None, None, None, 0.0, 0))
    assert {getattr(nothing, field) for field in FIELDS} == {None}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_answers_carry_them_where_the_owner_says_so(make: Any, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 3}
    body |= {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    assert "metrics" not in (await make().http.post(path, json=body)).json()
    server = make(enable_per_request_metrics=True)
    metrics = (await server.http.post(path, json=body)).json()["metrics"]
    assert metrics.keys() == FIELDS
    assert metrics["queue_time_ms"] == 1.0
    assert all(metrics[field] >= 0 for field in FIELDS - {"tokens_per_second"})
    assert (await server.http.post(path, json={**body, "n": 2, "temperature": 1})).json()["metrics"] is None
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    lines = (await server.http.post(path, json=stream)).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [chunk for chunk in chunks if "metrics" in chunk] == chunks[-1:]
    assert chunks[-1]["metrics"].keys() == FIELDS
    assert chunks[-1]["usage"]["completion_tokens"] == 3
