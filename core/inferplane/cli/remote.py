"""A small streaming client of an OpenAI-compatible server, for the chat and complete commands."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import httpx

from inferplane.errors import InferplaneError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

DEFAULT_URL = "http://127.0.0.1:8000/v1"
KEY_VARIABLE = "OPENAI_API_KEY"


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    """--url, --model-name, --api-key, --max-tokens, --temperature, --top-p, --seed."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"base URL of the server [{DEFAULT_URL}]")
    parser.add_argument("--model-name", help="model to ask; by default the server's first")
    parser.add_argument("--api-key", help=f"key to send; by default that of {KEY_VARIABLE}")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 is greedy; by default the server's")
    parser.add_argument(
        "--top-p", type=float, metavar="X", help="share of the likeliest tokens; the server's by default"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")


class Remote:
    """One server."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._url = arguments.url.rstrip("/")
        key = arguments.api_key or os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(10.0, read=None))
        self._body: dict[str, Any] = {"stream": True}
        for field in ("max_tokens", "temperature", "top_p", "seed"):
            if getattr(arguments, field) is not None:
                self._body[field] = getattr(arguments, field)
        self._body["model"] = arguments.model_name or self._first_model()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def model(self) -> str:
        """The model that is asked."""
        return str(self._body["model"])

    def chat(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """Pieces of the answer."""
        for chunk in self._stream("/chat/completions", {**self._body, "messages": messages}):
            for choice in chunk["choices"]:
                yield choice.get("delta", {}).get("content") or ""

    def complete(self, prompt: str) -> Iterator[str]:
        """Pieces of the completion."""
        for chunk in self._stream("/completions", {**self._body, "prompt": prompt}):
            for choice in chunk["choices"]:
                yield choice.get("text") or ""

    def _first_model(self) -> str:
        try:
            answer = self._http.get(f"{self._url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        self._check(answer)
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InferplaneError(
                f"{self._url}/models does not list models as an OpenAI-compatible server does",
                code="remote.error",
                remedy="give the address of one with --url; it usually ends in /v1",
            ) from error

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            with self._http.stream("POST", self._url + path, json=body) as answer:
                if answer.is_error:
                    answer.read()
                self._check(answer)
                for data in _events(answer.iter_bytes()):
                    yield self._chunk(data)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _chunk(self, data: bytes) -> dict[str, Any]:
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise InferplaneError(f"the server sent no chunk but {data[:100]!r}", code="remote.error") from error
        if chunk.get("error"):
            raise InferplaneError(f"the server said: {chunk['error']['message']}", code="remote.error")
        return {"choices": [], **chunk}

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_error:
            try:
                text = answer.json()["error"]["message"]
            except (ValueError, KeyError, TypeError):
                text = answer.text[:200]
            remedy = f"give a key with --api-key or {KEY_VARIABLE}" if answer.status_code == 401 else ""
            raise InferplaneError(
                f"the server answered {answer.status_code}: {text}", code="remote.error", remedy=remedy
            )

    def _unreachable(self, error: Exception) -> InferplaneError:
        return InferplaneError(
            f"no answer from {self._url}: {error}",
            code="remote.unreachable",
            remedy="start one with `inferplane serve`, or give its address with --url",
        )


def _events(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The data of server-sent events. Only a line feed ends a line: JSON may hold other separators that text has."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield line.removeprefix(b"data: ")
