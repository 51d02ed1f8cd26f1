"""When a request ends by what it generated. Knows token ids only; stop strings are the front end's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferplane.engine.request import RequestState


class Finish(NamedTuple):
    """Why a request ended."""

    reason: str
    stop_reason: int | None = None


_LENGTH = Finish("length")


def check_stop(request: RequestState, token: int) -> Finish | None:
    """Why the request ends with its newest token (already appended), or None.

    Stop ids and EOS count only once min_tokens tokens were generated. EOS leaves stop_reason None.
    """
    total = len(request.tokens)
    if token in request.stop_ids and total >= request.min_total:
        message = request.request
        is_eos = token in message.eos_token_ids and not message.params.ignore_eos
        return Finish("stop", None if is_eos else token)
    return _LENGTH if total >= request.limit else None
