"""MiniLM as anybody starts it, asked by the official client: two processes, real weights, real numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest

from inferplane import LLM

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.models

TEXTS = [f"Sentence number {number} is about {'the weather ' * (number % 7)}today." for number in range(90)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "inferplane", "serve", "minilm", "--dtype", "float32", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            ready = next((line for line in server.stdout if line.startswith("Ready: ")), "")
            found = re.search(r"http://\S+(?=/v1)", ready)
            assert found is not None, "the server ended before it was ready"
            yield found.group()
        finally:
            server.terminate()
            server.wait(30)


@pytest.fixture(scope="module")
def expected() -> Any:
    with LLM("minilm", dtype="float32") as llm:
        return np.array([output.outputs.embedding for output in llm.embed(TEXTS)])


def test_the_official_client(url: str, expected: Any) -> None:
    """It asks for base64 by itself."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="minilm", input=TEXTS)
        plain = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="float")
        with pytest.raises(openai.BadRequestError) as long:
            client.embeddings.create(model="minilm", input="word " * 300)
        with pytest.raises(openai.BadRequestError) as task:
            client.completions.create(model="minilm", prompt="Hi")
    assert [each.index for each in answer.data] == list(range(len(TEXTS)))
    assert np.array([each.embedding for each in answer.data]) == pytest.approx(expected, abs=1e-5)
    assert plain.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-6)
    assert "302 tokens" in str(long.value)
    assert "256 tokens" in str(long.value)
    assert task.value.code == "unsupported_task"


def test_many_clients_at_once(url: str, expected: Any) -> None:
    def ask(number: int) -> list[float]:
        answer = httpx.post(f"{url}/v1/embeddings", json={"input": TEXTS[number]}, timeout=60)
        vector: list[float] = answer.json()["data"][0]["embedding"]
        return vector

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(len(TEXTS))))
    assert np.array(found) == pytest.approx(expected, abs=1e-5)
    metrics = httpx.get(f"{url}/metrics").text
    (stopped,) = re.findall(r'^inferplane:request_success_total\{[^}]*"stop"\} (\S+)$', metrics, re.MULTILINE)
    assert float(stopped) >= len(TEXTS)
