"""The official client against a real server: two processes, the real scheduler, prescribed tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import openai
import psutil
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from inferplane_scripted.checkpoint import EOS, VOCAB_SIZE, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = ("Hello", " world", "!", " ST", "OP", " again")
HELLO, WORLD, BANG, ST, OP, AGAIN = range(VOCAB_SIZE, VOCAB_SIZE + len(WORDS))
KEY = "e2e-key"
USER: Any = [{"role": "user", "content": "Hi"}]


def ids(text: str) -> str:
    return ",".join(str(byte) for byte in text.encode())


def chat_key(text: str) -> str:
    return f"257,{ids('user' + chr(10) + text)},258,10,257,{ids('assistant' + chr(10))}"


SCRIPT = {
    "default": [HELLO, WORLD, BANG],
    "prompts": {
        ids("stop"): [HELLO, ST, OP, AGAIN],
        chat_key("stop"): [HELLO, ST, OP, AGAIN],
        ids("slow"): {"count_from": ord("a")},
        ids("nan"): [HELLO, WORLD],
        ids("scored"): {"tokens": [HELLO], "logprobs": [[[WORLD, -0.5], [HELLO, -1.25], [BANG, None]]]},
    },
    "faults": [{"kind": "nan", "prompt": ids("nan"), "position": 1}],
}


class Server:
    """One `inferplane serve` on a free port of loopback."""

    def __init__(self, folder: Path, script: dict[str, Any], *flags: str) -> None:
        path = folder / f"script-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(script))
        command = [sys.executable, "-m", "inferplane", "serve", str(folder / "model"), "--platform", "scripted"]
        command += ["--platform-option", f"script={path}", "--port", "0", "--served-model-name", "tiny"]
        command += ["--api-key", KEY, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ready: "):
                self.url = line.split(" on ")[1].split()[0]
                return
        raise AssertionError("\n".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=30)

    def engine(self) -> psutil.Process:
        (found,) = (
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if "inferplane.engine.process" in child.cmdline()
        )
        return found

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()


@contextlib.contextmanager
def serving(folder: Path, script: dict[str, Any], *flags: str) -> Iterator[Server]:
    write_checkpoint(folder / "model", words=WORDS, max_position=512)
    server = Server(folder, script, *flags)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("e2e"), SCRIPT, "--enable-prompt-tokens-details") as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as found:
        yield found


def strict(model: Any, value: Any) -> None:
    """The client itself validates nothing; its models do."""
    model.model_validate(value.model_dump(mode="json"), strict=False)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    strict(Model, model)
    assert (model.id, model.object) == ("tiny", "model")
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=USER)
    strict(ChatCompletion, answer)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello world!", "stop")
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4, "the end-of-text token counts"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4


def test_chat_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    for chunk in chunks:
        strict(ChatCompletionChunk, chunk)
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "Hello world!"
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert all(part.usage is None for part in parts)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_clients_own_accumulator_reads_the_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=USER, logprobs=True, top_logprobs=1) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello world!"
    logprobs = final.choices[0].logprobs
    assert logprobs is not None
    assert [entry.token for entry in logprobs.content or []][:3] == ["Hello", " world", "!"]


async def test_the_async_client(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        whole = await client.chat.completions.create(model="tiny", messages=USER)
        assert whole.choices[0].message.content == "Hello world!"
        stream = await client.completions.create(model="tiny", prompt="Hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world!"


async def test_many_streams_at_once(server: Server) -> None:
    async def one(client: openai.AsyncOpenAI, start: int) -> str:
        prompt = [start, 99]
        stream = await client.completions.create(model="tiny", prompt=prompt, max_tokens=30, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        texts = await asyncio.gather(*(one(client, start) for start in range(40)))
    assert texts == ["Hello world!"] * 40


def test_completions_of_every_prompt_form(client: openai.OpenAI) -> None:
    for prompt, count in (("Hi", 1), (["Hi", "ho"], 2), ([72, 105], 1), ([[72], [73], [74]], 3)):
        answer = client.completions.create(model="tiny", prompt=prompt)
        strict(Completion, answer)
        assert [choice.index for choice in answer.choices] == list(range(count))
        assert {choice.text for choice in answer.choices} == {"Hello world!"}


@pytest.mark.parametrize("stream", [False, True])
def test_two_answers(client: openai.OpenAI, stream: bool) -> None:
    texts = {0: "", 1: ""}
    reasons: dict[int, Any] = {}
    if stream:
        for chunk in client.chat.completions.create(model="tiny", messages=USER, n=2, stream=True):
            for part in chunk.choices:
                texts[part.index] += part.delta.content or ""
                reasons[part.index] = part.finish_reason
    else:
        for choice in client.chat.completions.create(model="tiny", messages=USER, n=2).choices:
            texts[choice.index] = choice.message.content or ""
            reasons[choice.index] = choice.finish_reason
    assert texts == {0: "Hello world!", 1: "Hello world!"}
    assert reasons == {0: "stop", 1: "stop"}


def test_stop_strings(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="stop", stop=["STOP"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello ", "stop")
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["stop_reason"] == "STOP"
    messages: Any = [{"role": "user", "content": "stop"}]
    stream = client.chat.completions.create(model="tiny", messages=messages, stop="STOP", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello "


def test_prescribed_logprobs_in_both_shapes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="scored", logprobs=3, max_tokens=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello"]
    assert logprobs.token_logprobs == [-1.25]
    assert logprobs.top_logprobs == [{" world": -0.5, "Hello": -1.25, "!": -9999.0}]
    chat = client.chat.completions.create(model="tiny", messages=USER, logprobs=True, top_logprobs=2)
    content = chat.choices[0].logprobs
    assert content is not None
    first = (content.content or [])[0]
    assert first.bytes == list(b"Hello")
    assert first.logprob == pytest.approx(math.log(0.5))
    assert [top.token for top in first.top_logprobs] == ["Hello", " world"]


def test_echo_scores_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Hey", echo=True, logprobs=1, max_tokens=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "Hey"
    assert logprobs is not None
    assert logprobs.tokens == ["H", "e", "y"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None  # type: ignore[comparison-overlap]
    assert logprobs.token_logprobs[1:] == pytest.approx([math.log(0.5)] * 2)


def test_max_tokens_and_ignored_end(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Hi", max_tokens=5, extra_body={"ignore_eos": True})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello world!Hello world", "length")
    whole = client.chat.completions.create(
        model="tiny", messages=USER, extra_body={"ignore_eos": True, "return_token_ids": True}
    )
    assert whole.usage is not None
    assert whole.usage.total_tokens == 512, "chat runs to the end of the context"


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    prompt = list(range(200))
    client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    again = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    salted = client.completions.create(model="tiny", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "mine"})
    cached = []
    for answer in (again, salted):
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] is not None
    assert 150 < cached[0] < 200
    assert cached[1] == 0


def test_a_bad_value_is_the_clients_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=USER, temperature=9)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="x" * 600)
    assert caught.value.code == "context_length_exceeded"


def test_a_wrong_key(server: Server) -> None:
    with server.client("wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_corrupted_request_fails_alone(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="tiny", prompt="nan")
    assert client.completions.create(model="tiny", prompt="Hi").choices[0].text == "Hello world!"


def test_a_client_that_leaves_frees_the_engine(server: Server, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny", prompt="slow", max_tokens=500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 10
    headers = {"x-api-key": KEY}
    root = server.url.removesuffix("/v1")
    while time.monotonic() < deadline:
        stats = httpx.get(f"{root}/server_info", headers=headers).json()["stats"]
        if stats["num_requests_running"] == 0 and stats["kv_cache_usage"] == 0:
            break
        time.sleep(0.1)
    assert (stats["num_requests_running"], stats["kv_cache_usage"]) == (0, 0)


def test_a_killed_engine_ends_streams_and_refuses_the_next(tmp_path: Path) -> None:
    script = {"default": {"repeat": HELLO}, "delay": 0.05}
    with serving(tmp_path, script) as server, server.client() as client:
        stream = client.chat.completions.create(model="tiny", messages=USER, stream=True)
        parts = iter(stream)
        assert next(parts).choices[0].delta.role == "assistant"
        server.engine().kill()
        killed = time.monotonic()
        with pytest.raises(openai.APIError) as caught:
            for _ in parts:
                pass
        # A bound of the contract (DESIGN §4), not a speed.
        assert time.monotonic() - killed < 2
        # A client reads that the engine is gone and which entry of the log has the cause, never the cause itself.
        named = re.search("the engine has stopped; error id ([0-9a-f]+)", caught.value.message)
        assert named
        assert "SIGKILL" not in caught.value.message
        (entry,) = [line for line in server.log if named[1] in line]
        assert "SIGKILL" in entry
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(model="tiny", messages=USER)
        assert refused.value.status_code == 503
        assert httpx.get(server.url.removesuffix("/v1") + "/health").status_code == 503


def test_the_end_of_text_is_no_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Hi", extra_body={"return_token_ids": True})
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["token_ids"][-1] == EOS
    assert answer.choices[0].text == "Hello world!"
