"""LangChain as anybody uses it against a real server: what it asks for, what it reads, and how its errors are told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def make(scripted: Any) -> Callable[..., Any]:
    """`make(ChatOpenAI, temperature=...)`: a client of the server."""

    def build(kind: Any, **settings: Any) -> Any:
        return kind(
            **{"model": scripted.model, "base_url": scripted.url, "api_key": scripted.key, "max_retries": 0, **settings}
        )

    return build


def test_chat(make: Callable[..., Any], scripted: Any) -> None:
    answer = make(ChatOpenAI, temperature=0, seed=1).invoke([("system", "Be short."), ("human", "Hi")])
    assert (answer.type, answer.content) == ("ai", scripted.answer)
    assert (answer.tool_calls, answer.invalid_tool_calls) == ([], [])
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == scripted.model
    assert answer.usage_metadata["output_tokens"] == scripted.num_tokens
    assert answer.usage_metadata["total_tokens"] == answer.usage_metadata["input_tokens"] + scripted.num_tokens
    assert answer.id


def test_a_chat_that_is_cut(make: Callable[..., Any]) -> None:
    answer = make(ChatOpenAI, max_completion_tokens=5).invoke("Hi")
    assert (answer.content, answer.response_metadata["finish_reason"]) == ("Hello", "length")
    stopped = make(ChatOpenAI).invoke("Hi", stop=["clie"])
    assert (stopped.content, stopped.response_metadata["finish_reason"]) == ("Hello, ", "stop")


def test_chat_streams_with_usage(make: Callable[..., Any], scripted: Any) -> None:
    chunks = list(make(ChatOpenAI, stream_usage=True).stream("Hi"))
    assert "".join(chunk.content for chunk in chunks) == scripted.answer
    assert len([chunk for chunk in chunks if chunk.content]) > 5
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["output_tokens"] == scripted.num_tokens
    whole = make(ChatOpenAI).invoke("Hi")
    summed = chunks[0]
    for chunk in chunks[1:]:
        summed += chunk
    assert summed.content == whole.content
    assert summed.usage_metadata == whole.usage_metadata
    assert summed.response_metadata["finish_reason"] == "stop"


async def test_many_at_once(make: Callable[..., Any], scripted: Any) -> None:
    answers = await make(ChatOpenAI).abatch([f"number {number}" for number in range(16)])
    assert [answer.content for answer in answers] == [scripted.answer] * 16
    assert "".join([chunk.content async for chunk in make(ChatOpenAI).astream("Hi")]) == scripted.answer


def test_logprobs(make: Callable[..., Any]) -> None:
    answer = make(ChatOpenAI, logprobs=True, top_logprobs=2, max_completion_tokens=2).invoke("Hi")
    content = answer.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "e"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]


def test_completions(make: Callable[..., Any], scripted: Any) -> None:
    model = make(OpenAI, max_tokens=100)
    assert model.invoke("Hi") == scripted.answer
    assert "".join(model.stream("Hi")) == scripted.answer
    result = model.generate(["a", "b"])
    assert [[choice.text for choice in choices] for choices in result.generations] == [
        [scripted.answer],
        [scripted.answer],
    ]
    assert result.generations[0][0].generation_info["finish_reason"] == "stop"
    assert result.llm_output["token_usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2 * scripted.num_tokens,
        "total_tokens": 2 + 2 * scripted.num_tokens,
    }


@pytest.mark.parametrize(
    ("settings", "prompt", "kind", "code"),
    [
        ({"api_key": "wrong"}, "Hi", openai.AuthenticationError, "invalid_api_key"),
        ({"temperature": 9}, "Hi", openai.BadRequestError, "invalid_value"),
        ({}, "x" * 5000, openai.BadRequestError, "context_length_exceeded"),
        ({"model": "other"}, "Hi", openai.NotFoundError, "model_not_found"),
    ],
    ids=["key", "value", "long", "model"],
)
@pytest.mark.parametrize("client", [ChatOpenAI, OpenAI])
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    make: Callable[..., Any], client: Any, stream: bool, settings: Any, prompt: str, kind: Any, code: str
) -> None:
    model = make(client, **settings)
    with pytest.raises(kind) as caught:
        list(model.stream(prompt)) if stream else model.invoke(prompt)
    assert caught.value.code == code
    if client is ChatOpenAI:
        assert isinstance(caught.value, ContextOverflowError) == (code == "context_length_exceeded")


def test_a_full_queue_and_a_dead_engine(scripted_model: Path, served: Any) -> None:
    script = {"default": {"repeat": ord("a")}, "delay": 0.05}
    flags = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    with served(scripted_model, script, *flags) as server:
        url = server.wait_ready()
        model = ChatOpenAI(model="scripted", base_url=f"{url}/v1", api_key="none", max_retries=0)  # type: ignore[arg-type]
        running, ended = model.stream("Hi"), []
        next(running)
        waiting = threading.Thread(target=lambda: ended.append(_end_of(model)), daemon=True)
        waiting.start()
        deadline = time.monotonic() + 20
        while httpx.get(f"{url}/load").json()["server_load"] != 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(openai.RateLimitError) as full:
            model.invoke("Hi")
        assert full.value.code == "rate_limit_exceeded"
        assert int(full.value.response.headers["retry-after"]) >= 1
        server.engine.kill()
        with pytest.raises(openai.APIError, match="the engine has stopped"):
            list(running)
        with pytest.raises(openai.InternalServerError) as dead:
            model.invoke("Hi")
        assert dead.value.status_code == 503
        waiting.join(20)
        assert isinstance(ended[0], openai.InternalServerError)


def _end_of(model: ChatOpenAI) -> Exception | None:
    try:
        model.invoke("Hi")
    except openai.OpenAIError as error:
        return error
    return None


def test_embeddings(tiny_llama_dir: Path, served: Any) -> None:
    """Of texts: the check of their length against OpenAI's own tokenizer, which is fetched, has to be off."""
    texts = ["one", "another one", "é 日本"]
    flags = ("--platform", "reference", "--dtype", "float32", "--runner", "pooling", "--convert", "embed")
    with served(tiny_llama_dir, None, *flags) as server:
        url = f"{server.wait_ready()}/v1"
        model = OpenAIEmbeddings(
            model="scripted",
            base_url=url,
            api_key="none",  # type: ignore[arg-type]
            max_retries=0,
            check_embedding_ctx_length=False,
        )
        found = [*model.embed_documents(texts), model.embed_query(texts[0])]
        plain = httpx.post(f"{url}/embeddings", json={"input": [*texts, texts[0]]}).json()["data"]
        with pytest.raises(openai.BadRequestError, match="tokens"):
            model.embed_query("x" * 3000)
    for one, other in zip(found, plain, strict=True):
        assert one == pytest.approx(other["embedding"], abs=1e-6)
    assert found[0] != pytest.approx(found[1], abs=1e-2)
