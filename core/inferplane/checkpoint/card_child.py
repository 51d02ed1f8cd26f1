"""The process in which a format reads a card, started by `plugins/child_process.py`: one request on stdin, one card on
stdout. Decides nothing.

What a format prints goes to stderr, since the answer travels on a private copy of stdout; an alarm ends a child whose
parent is gone.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import msgspec

from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.errors import InferplaneError
from inferplane_api.internal.loading import find


class CardRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which format reads what."""

    load: str
    """"module:Class"."""
    path: str
    cache: str
    seconds: float


class CardReply(msgspec.Struct, frozen=True, kw_only=True):
    """The card; or the format's error (message, code, remedy); or what went wrong with the format itself."""

    card: CheckpointCard | None = None
    message: str = ""
    code: str = ""
    remedy: str = ""
    failure: str = ""


def answer(request: CardRequest) -> CardReply:
    """Import the format and read the card; every exception is an answer."""
    try:
        card = find(request.load)().card(Path(request.path), Path(request.cache))
    except InferplaneError as error:
        return CardReply(message=error.message, code=error.code, remedy=error.remedy)
    except Exception as error:
        return CardReply(failure=f"{type(error).__name__}: {error}")
    if not isinstance(card, CheckpointCard):
        return CardReply(failure=f"card() gave {type(card).__name__} instead of a CheckpointCard")
    return CardReply(card=card)


def main() -> None:
    """Make stdout private, answer, end."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CardRequest)
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(request.seconds) + 1)
    replies.write(msgspec.msgpack.encode(answer(request)))
    replies.flush()
    sys.stderr.flush()
    # A thread or an exit handler that a plugin left behind must not keep the child alive.
    os._exit(0)


if __name__ == "__main__":
    main()
