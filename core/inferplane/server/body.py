"""Reads and checks the JSON body of a request; knows no route."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from inferplane.log import get_logger
from inferplane.server.errors import CLIENT_CLOSED, ApiError, bad_value

if TYPE_CHECKING:
    from starlette.requests import Request

log = get_logger(__name__)

MAX_BODY_BYTES = 64 * 2**20
"""Unless the user says otherwise."""
MAX_SHOWN_CHARACTERS = 100
"""Of a bad value, in its error."""
MAX_WARNED_FIELDS = 1000
"""Unknown names that are remembered, so that each is warned about once and a hostile client fills no memory."""

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model], warned: set[str], max_bytes: int = MAX_BODY_BYTES) -> Model:
    """The validated body. Raises ApiError 400 naming the field, 413 or 415.

    Unknown fields are ignored; each name is logged once, remembered in `warned`.
    """
    return parse_body(await read_raw(request, max_bytes), model, request.scope["path"], warned)


def parse_body(raw: bytes, model: type[Model], path: str, warned: set[str]) -> Model:
    """See `read_body`."""
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise _first_problem(error) from None
    _warn_unknown(body, path, warned)
    return body


async def read_raw(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body's bytes. Raises ApiError 415 for what is no plain JSON, 413 for more than max_bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A web page may send other types to a server on loopback without asking first; JSON needs a preflight.
        raise ApiError(415, "Content-Type must be application/json", code="invalid_content_type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        # A few compressed bytes can become gigabytes.
        raise ApiError(415, "a body with a Content-Encoding is not taken", code="invalid_content_encoding")
    too_large = ApiError(413, f"the body exceeds {max_bytes} bytes", code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > max_bytes):
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise ApiError(CLIENT_CLOSED, "the client left", code="client_closed") from None
    return b"".join(parts)


def fields_of(raw: bytes) -> frozenset[str]:
    """An object's field names; none for what is no JSON object, which `parse_body` refuses."""
    try:
        value = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return frozenset()
    return frozenset(value)


def _first_problem(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {message}", code="invalid_json")
    field = ".".join(str(part) for part in first["loc"])
    if not field:
        return ApiError(400, f"the body is not valid: {message}", code="invalid_value")
    if first["type"] == "missing":
        return bad_value(field, message, code="missing_value")
    value = first["input"]
    return bad_value(field, message, value=value if _is_short(value) else None)


def _is_short(value: object) -> bool:
    """Lists and objects of a hostile body are not even written down to see how long they are."""
    if isinstance(value, str):
        return len(value) <= MAX_SHOWN_CHARACTERS
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)


def _warn_unknown(body: BaseModel, path: str, warned: set[str]) -> None:
    unknown = [name for name in body.model_extra or () if name not in warned]
    if not unknown or len(warned) >= MAX_WARNED_FIELDS:
        return
    warned.update(unknown)
    shown = ", ".join(repr(name[:64]) for name in unknown[:20])
    log.warning("%s: unknown fields are ignored: %s", path, shown)
