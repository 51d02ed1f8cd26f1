"""Same seed, same text, whatever the neighbours: over HTTP, on a model that computes, with one API process or two.

The truth is each request by itself on a server that batches nothing, caches nothing and overlaps nothing.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = ("--platform", "reference", "--dtype", "float32", "--max-model-len", "256")
COMPLETION = {"prompt": "Once upon a time, in the land of the", "max_tokens": 16}
CHAT = {"messages": [{"role": "user", "content": "Tell me of the sea"}], "max_tokens": 16}
CASES: list[dict[str, Any]] = [
    {**COMPLETION, "seed": 1},
    {**COMPLETION, "seed": 2},
    {**COMPLETION, "seed": 1, "n": 3},
    {**COMPLETION, "seed": 3, "top_k": 40, "top_p": 0.9},
    {**COMPLETION, "seed": 4, "top_p": 0.8, "temperature": 1.7},
    {**COMPLETION, "seed": 5, "min_p": 0.02, "presence_penalty": 1, "frequency_penalty": 0.5},
    {**COMPLETION, "seed": 6, "prompt": ["another prompt", COMPLETION["prompt"]], "n": 2},
    {**COMPLETION, "seed": -7, "prompt": list(range(20, 120)), "logit_bias": {"30": 5}},
    {**CHAT, "seed": 8},
    {**CHAT, "seed": 8, "n": 2, "repetition_penalty": 1.2},
    {**CHAT, "seed": 2**63, "min_tokens": 9},
]


HTTP = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""A connection for each request, so that several processes get their share."""


def ask(url: str, body: dict[str, Any]) -> list[tuple[list[int], str, str]]:
    """Of each choice the tokens, the text and why it ended."""
    body = {"model": "scripted", "temperature": 1.0, "return_token_ids": True, **body}
    route = "chat/completions" if "messages" in body else "completions"
    answer = HTTP.post(f"{url}/v1/{route}", json=body)
    assert answer.status_code == 200, answer.text
    return [
        (each["token_ids"], each["message"]["content"] if "messages" in body else each["text"], each["finish_reason"])
        for each in answer.json()["choices"]
    ]


def streamed(url: str, body: dict[str, Any]) -> list[tuple[list[int], str, str]]:
    """The same, of a stream."""
    body = {"model": "scripted", "temperature": 1.0, "return_token_ids": True, "stream": True, **body}
    route = "chat/completions" if "messages" in body else "completions"
    found: dict[int, tuple[list[int], str, str]] = {}
    with HTTP.stream("POST", f"{url}/v1/{route}", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            for each in json.loads(line.removeprefix("data: "))["choices"]:
                ids, text, reason = found.get(each["index"], ([], "", ""))
                new = each["delta"].get("content") or "" if "messages" in body else each["text"]
                ids = [*ids, *(each.get("token_ids") or [])]
                found[each["index"]] = (ids, text + new, each["finish_reason"] or reason)
    return [found[index] for index in sorted(found)]


@contextmanager
def neighbours(url: str, count: int) -> Iterator[None]:
    """Others that come and go all the time, without a seed and of every length."""
    stop = threading.Event()

    def visit(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            prompt = [rng.randrange(3, 300) for _ in range(rng.randrange(1, 90))]
            ask(url, {"prompt": prompt, "max_tokens": rng.randrange(1, 40), "n": rng.choice([1, 1, 3])})

    with ThreadPoolExecutor(count) as pool:
        visits = [pool.submit(visit, number) for number in range(count)]
        try:
            deadline = time.monotonic() + 30
            while HTTP.get(f"{url}/load").json()["server_load"] < 2:
                assert time.monotonic() < deadline
            yield
        finally:
            stop.set()
    for each in visits:
        each.result()


@pytest.fixture(scope="module")
def truth(tiny_llama_dir: Path, served: Any) -> list[Any]:
    flags = ("--max-num-seqs", "1", "--no-enable-prefix-caching", "--no-async-scheduling")
    with served(tiny_llama_dir, None, *MODEL, *flags) as server:
        url = server.wait_ready()
        return [ask(url, case) for case in CASES]


def test_seeds_tell_apart(truth: list[Any]) -> None:
    """Otherwise what follows would hold for greedy answers too."""
    first, other, three = (truth[index] for index in range(3))
    assert first[0][0] != other[0][0]
    assert len({text for _, text, _ in three}) == 3, "sequences of one request draw their own"
    assert three[0] == first[0]
    assert all(ids for case in truth for ids, _, _ in case)


@pytest.mark.parametrize(
    ("flags", "processes"),
    [
        (("--max-num-batched-tokens", "48", "--block-size", "4"), {None}),
        (("--api-server-count", "2"), {"[api 0]", "[api 1]"}),
    ],
    ids=["chunked", "two API processes"],
)
def test_neighbours_and_order_change_nothing(
    tiny_llama_dir: Path, served: Any, truth: list[Any], flags: tuple[str, ...], processes: set[Any]
) -> None:
    rng = random.Random(2026)
    with served(tiny_llama_dir, None, *MODEL, *flags) as server:
        url = server.wait_ready()
        with neighbours(url, 3), ThreadPoolExecutor(len(CASES)) as pool:
            for way in (ask, streamed):
                order = rng.sample(range(len(CASES)), len(CASES))
                answers = dict(zip(order, pool.map(lambda index, way=way: way(url, CASES[index]), order), strict=True))
                assert [answers[index] for index in range(len(CASES))] == truth
        lines = [re.match(r"(\[api \d\])?.*POST /v1/\S+ 200", line) for line in server.log]
        assert {line[1] for line in lines if line} == processes
        # Without a seed, answers differ: the engine is not just answering the same to everybody.
        assert len({ask(url, COMPLETION)[0][1] for _ in range(4)}) == 4
