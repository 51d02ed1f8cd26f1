"""When a request ends by what it generated. Knows token ids only; stop strings are the front end's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.engine.request import RequestState
    from inferplane_api.sampling import RepetitionDetection


class Finish(NamedTuple):
    """Why a request ended."""

    reason: str
    stop_reason: int | str | None = None


_LENGTH = Finish("length")
_REPETITION = Finish("stop", "repetition_detected")


def check_stop(request: RequestState, token: int) -> Finish | None:
    """Why the request ends with its newest token (already appended), or None.

    Stop ids and EOS count only once min_tokens tokens were generated. EOS leaves stop_reason None.
    """
    total = len(request.tokens)
    if token in request.stop_ids and total >= request.min_total:
        message = request.request
        is_eos = token in message.eos_token_ids and not message.params.ignore_eos
        return Finish("stop", None if is_eos else token)
    detection = request.request.params.repetition_detection
    if detection is not None and total >= request.min_total and repeats(request.tokens, request.num_prompt, detection):
        return _REPETITION
    return _LENGTH if total >= request.limit else None


def repeats(tokens: Sequence[int], start: int, detection: RepetitionDetection) -> bool:
    """Whether tokens[start:] end in a pattern of an allowed size, min_count times."""
    room = (len(tokens) - start) // detection.min_count
    last = tokens[-1]
    for size in range(detection.min_pattern_size, min(detection.max_pattern_size, room) + 1):
        # A sequence of count patterns is one that equals itself, moved by a pattern.
        if (
            tokens[-1 - size] == last
            and tokens[-size * detection.min_count : -size] == tokens[-size * (detection.min_count - 1) :]
        ):
            return True
    return False
