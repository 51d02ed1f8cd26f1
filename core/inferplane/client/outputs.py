"""From deltas to text: one assembler a sequence, and the results of the offline API. Knows no HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferplane.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from inferplane.messages import Delta, Request
    from inferplane.text.tokenizer import Tokenizer
    from inferplane_api.step import TokenLogprobs


class Increment(msgspec.Struct, frozen=True, gc=False):
    """What one delta adds to a sequence, as a client sees it."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None
    abort: bool
    """True when the front end ended the sequence (a stop string) and the engine must be told."""
    num_tokens: int = 0
    """Of the sequence, with these."""
    error: str | None = None

    def then(self, later: Increment) -> Increment:
        """Both, as one."""
        logprobs = None
        if self.logprobs is not None and later.logprobs is not None:
            logprobs = self.logprobs + later.logprobs
        return msgspec.structs.replace(
            later, text=self.text + later.text, token_ids=self.token_ids + later.token_ids, logprobs=logprobs
        )


class OutputAssembler:
    """Text of one sequence. Without a tokenizer the text stays empty."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        params = request.params
        self._detokenizer = (
            Detokenizer(tokenizer, params, request.prompt_token_ids)
            if tokenizer is not None and params.detokenize
            else None
        )
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finished = False

    def push(self, delta: Delta) -> Increment:
        """Take a delta in. After the increment with a finish_reason nothing more may be pushed."""
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
        token_ids, logprobs, finish = delta.token_ids, delta.logprobs, delta.finish_reason
        if finish is None and len(token_ids) == 1:
            return self._push_one(token_ids, logprobs)
        text, stop = self._decode(token_ids, ended_by_token=finish == "stop" and not isinstance(delta.stop_reason, str))
        if stop is not None:
            kept = stop.num_tokens
            self._finish(kept)
            return Increment(
                text, token_ids[:kept], logprobs and logprobs[:kept], "stop", stop.string, finish is None,
                self.num_tokens,
            )  # fmt: skip
        if finish is not None:
            if self._detokenizer is not None:
                text += self._detokenizer.finish()
            self._finish(len(token_ids))
        else:
            self.num_tokens += len(token_ids)
        return Increment(text, token_ids, logprobs, finish, delta.stop_reason, False, self.num_tokens, delta.error)

    def _push_one(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> Increment:
        """As nearly every delta of a decode."""
        self.num_tokens += 1
        detokenizer = self._detokenizer
        if detokenizer is None:
            return Increment("", token_ids, logprobs, None, None, False, self.num_tokens)
        text = detokenizer.push_one(token_ids[0])
        stop = detokenizer.stop
        if stop is None:
            return Increment(text, token_ids, logprobs, None, None, False, self.num_tokens)
        self.finished = True
        return Increment(text, token_ids, logprobs, "stop", stop, True, self.num_tokens)

    def _decode(self, token_ids: list[int], *, ended_by_token: bool) -> tuple[str, _Stop | None]:
        if self._detokenizer is None or not token_ids:
            return "", None
        piece = self._detokenizer.push(token_ids, stopped_by_token=ended_by_token)
        return piece.text, None if piece.stop is None else _Stop(piece.stop, piece.num_tokens_used)

    def _finish(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self.finished = True


class _Stop(NamedTuple):
    string: str
    num_tokens: int


class Logprob(msgspec.Struct, frozen=True):
    """One entry of a position's log-probabilities."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One generated sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = []
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, kw_only=True):
    """All sequences of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0


def logprob_table(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Token id to log-probability at one position: the token's own first, then the most likely ones."""

    def decoded(token_id: int) -> str | None:
        return None if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=False)

    table = {entry.token_id: Logprob(entry.logprob, entry.rank, decoded(entry.token_id))}
    for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), start=1):
        table.setdefault(token_id, Logprob(logprob, rank, decoded(token_id)))
    for token_id, logprob in zip(entry.listed_ids, entry.listed_logprobs, strict=True):
        table.setdefault(token_id, Logprob(logprob, None, decoded(token_id)))
    return table
