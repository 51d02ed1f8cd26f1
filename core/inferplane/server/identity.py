"""The id of a request: the client's where it sent a good one, else ours. Kept in the ASGI scope; knows no route."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

HEADER = b"x-request-id"
_STATE = "request_id"
_GOOD = re.compile(rb"[\x21-\x7e]{1,128}")
"""Nothing that could break a line of the log or a header."""


def identify(scope: MutableMapping[str, Any]) -> str:
    """Choose the id of a request that just arrived."""
    chosen = uuid.uuid4().hex
    for name, value in scope["headers"]:
        if name == HEADER and _GOOD.fullmatch(value):
            chosen = value.decode("ascii")
            _state(scope)["client_request_id"] = chosen
            break
    _state(scope)[_STATE] = chosen
    return chosen


def request_id(scope: MutableMapping[str, Any]) -> str:
    """The id of the request, which `identify` has chosen or `rename` has changed."""
    known = _state(scope).get(_STATE)
    return identify(scope) if known is None else str(known)


def rename(scope: MutableMapping[str, Any], body_id: str | None) -> str:
    """The id after the body was read: the header's, else the body's, else ours."""
    state = _state(scope)
    if body_id is not None and "client_request_id" not in state:
        state[_STATE] = body_id
    return request_id(scope)


def _state(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    found: MutableMapping[str, Any] = scope.setdefault("state", {})
    return found
