"""Turns what a step gave for one request into its Delta. Knows neither slots nor pages."""

from __future__ import annotations

import math
import sys
from array import array
from typing import TYPE_CHECKING

from inferplane.engine.stops import Finish, check_stop
from inferplane.messages import Delta

if TYPE_CHECKING:
    from inferplane.engine.request import RequestState
    from inferplane_api.step import TokenLogprobs


def accept(
    request: RequestState, new: list[int], logprobs: list[TokenLogprobs] | None
) -> tuple[list[int], list[TokenLogprobs] | None, Finish | None]:
    """Confirm sampled tokens up to the first that ends the request."""
    tokens = request.tokens
    for used, token in enumerate(new, 1):
        tokens.append(token)
        finish = check_stop(request, token)
        if finish is not None:
            return new[:used], logprobs and logprobs[:used], finish
    return new, logprobs, None


def store_prompt_logprobs(request: RequestState, start: int, entries: list[TokenLogprobs]) -> None:
    """Keep those of prompt tokens start + 1 …; a chunk that is computed again overwrites the same places."""
    kept = request.prompt_logprobs
    if kept is not None:
        end = min(start + 1 + len(entries), request.num_prompt)
        kept[start + 1 : end] = entries[: end - start - 1]


def make_delta(
    request: RequestState, tokens: list[int], logprobs: list[TokenLogprobs] | None, finish: Finish | None
) -> Delta:
    """The message about a step; the first one also tells of the cache, the queue and the prompt."""
    delta = Delta(request_id=request.request_id, token_ids=tokens, logprobs=logprobs)
    if finish is not None:
        delta.finish_reason = finish.reason
        delta.stop_reason = finish.stop_reason
    if request.fresh:
        request.fresh = False
        delta.num_cached_tokens = request.num_cached
        delta.queue_seconds = request.queue_seconds
        delta.prompt_logprobs = request.prompt_logprobs
        request.prompt_logprobs = None
    return delta


def pooled_delta(request: RequestState, vector: list[float]) -> Delta | None:
    """The last message of a pooled request; None when its vector is not finite."""
    if not math.isfinite(sum(vector)):
        return None
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    delta = make_delta(request, [], None, Finish("stop"))
    delta.pooled = packed.tobytes()
    return delta


def error_delta(request_id: str, error: str, code: str) -> Delta:
    """The last message of a request that failed; `code` is one of ERROR_CODES."""
    return Delta(request_id=request_id, finish_reason="error", error=error, error_code=code)
