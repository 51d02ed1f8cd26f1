"""One line of a batch file and one line of its answer, as OpenAI defines them. Knows no engine."""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


class BatchRequest(NamedTuple):
    """What one line asks for."""

    custom_id: str
    url: str
    body: dict[str, Any]


class BadLine(Exception):
    """A line that asks for nothing that can be done; `custom_id` as far as it is known."""

    def __init__(self, custom_id: str | None, code: str, message: str) -> None:
        super().__init__(message)
        self.custom_id = custom_id
        self.code = code
        self.message = message


def parse_line(line: bytes) -> BatchRequest:
    """Raises BadLine."""
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadLine(None, "invalid_json", f"the line is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise BadLine(None, "invalid_line", "the line must be a JSON object")
    custom_id = entry.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine(None, "missing_custom_id", "custom_id must be text")
    if entry.get("method", "POST") != "POST":
        raise BadLine(custom_id, "invalid_method", f"method must be POST, not {entry['method']!r}")
    url = entry.get("url")
    if url not in ENDPOINTS:
        raise BadLine(custom_id, "invalid_url", f"url={url!r} is not one of {', '.join(ENDPOINTS)}")
    body = entry.get("body")
    if not isinstance(body, dict):
        raise BadLine(custom_id, "invalid_body", "body must be a JSON object")
    if body.get("stream"):
        raise BadLine(custom_id, "invalid_body", "stream must be left out: an answer of a batch is one object")
    return BatchRequest(custom_id, str(url), body)


def answer_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """The line for a request that was answered, well or with an error of the API."""
    response = {"status_code": status, "request_id": request_id, "body": json.loads(body)}
    return _line(custom_id, response, None)


def error_line(error: BadLine) -> bytes:
    """The line for a request that never was one."""
    return _line(error.custom_id, None, {"code": error.code, "message": error.message})


def _line(custom_id: str | None, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    record = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(record) + b"\n"
