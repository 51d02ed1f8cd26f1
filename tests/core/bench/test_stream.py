"""Chunks of a stream to times and counts, on a clock that the test moves."""

from __future__ import annotations

import json

import msgspec
import pytest

from inferplane.bench.stream import StreamFailed, StreamReader


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


ROLE = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
TEXT = event(choices=[{"delta": {"content": "one\u2028two"}}], usage=None)
REASONING = event(choices=[{"delta": {"reasoning_content": "hm"}}])
CALL = event(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}])
USAGE = event(
    choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
)
DONE = b"data: [DONE]\n\n"


def test_only_output_counts() -> None:
    reader = StreamReader(keep_text=True)
    for now, data in enumerate([ROLE, TEXT, REASONING, CALL, USAGE, DONE]):
        reader.feed(data, float(now))
    assert list(reader.times) == [1.0, 2.0, 3.0]
    assert (reader.prompt_tokens, reader.output_tokens, reader.cached_tokens) == (7, 3, 4)
    assert reader.complete
    assert reader.pieces is not None
    assert reader.pieces[0] == "one\u2028two"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
def test_events_split_anywhere(size: int, line: bytes) -> None:
    stream = b": ping" + line * 2 + (ROLE + TEXT + TEXT + USAGE + DONE).replace(b"\n", line)
    reader = StreamReader()
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size], float(start))
    assert len(reader.times) == 2
    assert (reader.output_tokens, reader.complete) == (3, True)


def test_an_event_with_a_name() -> None:
    reader = StreamReader()
    reader.feed(b"event: message\n" + TEXT, 1.0)
    assert list(reader.times) == [1.0]


@pytest.mark.parametrize("error", [{"message": "out of luck"}, "out of luck"])
def test_an_error_in_the_stream_is_a_failure(error: object) -> None:
    with pytest.raises(StreamFailed, match="out of luck"):
        StreamReader().feed(event(error=error), 0.0)


def test_what_is_no_chunk_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        StreamReader().feed(b"data: <html>\n\n", 0.0)
