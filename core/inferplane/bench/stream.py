"""What an OpenAI-compatible server streams, reduced to times and counts; knows no connection."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from inferplane.errors import InferplaneError


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class StreamFailed(InferplaneError):
    """The server said in the stream that the request failed."""


class StreamReader:
    """The sink of one streamed answer.

    A chunk counts when it carries text, reasoning or a tool call: the first chunk of a chat holds only a role, and
    would make the time to the first token look better than it is.
    """

    def __init__(self, *, keep_text: bool = False) -> None:
        self.times = array("d")
        """When each chunk with output came."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.complete = False
        """[DONE] came."""
        self.pieces: list[str] | None = [] if keep_text else None
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Raises StreamFailed for an error event, msgspec.DecodeError for what is no chunk."""
        data = self._rest + data if self._rest else data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            if not event.startswith(b"data:") or b"\n" in event:
                event = _data_of(event)
                if not event:
                    continue
            self._take(event[5:].strip(), now)

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        chunk = _decode(data)
        if chunk.error is not None:
            error = chunk.error
            text = error.get("message") if isinstance(error, dict) else error
            raise StreamFailed(str(text), code="stream")
        for choice in chunk.choices:
            if text := _output(choice):
                self.times.append(now)
                if self.pieces is not None:
                    self.pieces.append(text)
                break
        if chunk.usage is not None:
            self._count(chunk.usage)

    def _count(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _output(choice: _Choice) -> str:
    delta = choice.delta
    if delta is None:
        return choice.text or ""
    if delta.tool_calls:
        return str(delta.tool_calls)
    return delta.content or delta.reasoning or delta.reasoning_content or ""


def _data_of(event: bytes) -> bytes:
    """The data line of an event that has other lines (a name, a comment); empty without one."""
    return next((line for line in event.split(b"\n") if line.startswith(b"data:")), b"")
