"""From an exception to the error body that OpenAI clients read; alone knows which failure has which status."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from inferplane.errors import (
    ContextTooLong,
    EngineDead,
    InferplaneError,
    InvalidValue,
    QueueFull,
    ShuttingDown,
    TookTooLong,
)
from inferplane.log import get_logger
from inferplane.server import identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

log = get_logger(__name__)

INVALID_REQUEST = "invalid_request_error"
CLIENT_CLOSED = 499
"""What the log and the metrics call an answer that nobody waited for."""
_MAX_SHOWN = 200


class ApiError(Exception):
    """An answer other than 200: `{"error": {"message", "type", "param", "code"}}`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: str = INVALID_REQUEST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.kind = kind
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        """The JSON object's bytes."""
        return msgspec.json.encode(self.body())

    def response(self) -> Response:
        """The whole answer."""
        return Response(self.encoded(), self.status, self.headers, "application/json")


def bad_value(field: str, problem: str, *, code: str = "invalid_value", value: object = None) -> ApiError:
    """A 400 that names the field, and the value where it is given and short."""
    shown = "" if value is None else _shown(value)
    return ApiError(400, f"{field}{shown}: {problem}", code=code, param=field)


def _shown(value: object) -> str:
    """ "=VALUE" as a client wrote it: a list is a tuple in the core only. Nothing of a long one."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return f"={text}" if len(text) <= _MAX_SHOWN else ""


def not_supported(field: str) -> ApiError:
    """A 400 for a field whose feature is not there yet: ignoring it would change the answer's meaning."""
    return bad_value(field, "is not supported yet", code="unsupported_value")


def from_engine(cause: InferplaneError | None, default: str = "the engine is gone") -> ApiError:
    """A 503. The cause is for the log; the client gets an id that stands beside it there."""
    message = default if cause is None else cause.public if isinstance(cause, EngineDead) else cause.message
    code = "engine_dead" if cause is None or not cause.code else cause.code
    return ApiError(503, message, code=code, kind="server_error")


def shutting_down() -> ApiError:
    """A 503 that another server may answer."""
    return ApiError(
        503, "the server is shutting down", code="shutting_down", kind="server_error", headers={"Retry-After": "5"}
    )


def to_api_error(
    error: Exception, names: Mapping[str, str] | None = None, *, request_id: str | None = None
) -> ApiError:
    """The answer to an exception of the core; `names` maps its field names to those of the request body.

    What nobody expected goes to the log, and its answer says only under which id.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidValue):
        field = (names or {}).get(error.field, error.field)
        remedy = f"; {error.remedy}" if error.remedy else ""
        code = "context_length_exceeded" if isinstance(error, ContextTooLong) else "invalid_value"
        return ApiError(400, f"{field}{_shown(error.value)}: {error.problem}{remedy}", code=code, param=field)
    if isinstance(error, QueueFull):
        wait = str(max(1, math.ceil(error.retry_after)))
        return ApiError(
            429, error.message, code="rate_limit_exceeded", kind="rate_limit_error", headers={"Retry-After": wait}
        )
    if isinstance(error, EngineDead):
        return from_engine(error)
    if isinstance(error, TookTooLong):
        return ApiError(504, error.message, code="request_timeout", kind="timeout_error")
    if isinstance(error, ShuttingDown):
        return shutting_down()
    if isinstance(error, InferplaneError):
        return ApiError(500, str(error), code=error.code or "internal_error", kind="server_error")
    shown = "without an id" if request_id is None else request_id
    log.error("unexpected error in request %s", ascii(shown), exc_info=error)
    message = f"internal error; the server's log has the cause, request {shown}"
    return ApiError(500, message, code="internal_error", kind="server_error")


async def handle_error(request: Request, error: Exception) -> Response:
    """Answer an exception that a route raised."""
    return to_api_error(error, request_id=identity.request_id(request.scope)).response()


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router raises: unknown route, wrong method."""
    status = int(getattr(error, "status_code", 500))
    headers = getattr(error, "headers", None)
    # Not `request.url`, which is made of what the client calls this host and may be no URL.
    path = request.scope["path"]
    if status == 404:
        found = ApiError(404, f"unknown route {request.method} {path}", code="unknown_url", headers=headers)
    elif status == 405:
        message = f"{request.method} is not allowed for {path}"
        found = ApiError(405, message, code="method_not_allowed", headers=headers)
    else:
        found = ApiError(status, str(getattr(error, "detail", error)), code="http_error", headers=headers)
    return found.response()
