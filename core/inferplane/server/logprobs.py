"""The shapes of log-probabilities on the wire; minus infinity becomes -9999.0. Knows no route."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from inferplane.server.responses import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    TopLogprob,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.text.detokenizer import TextStream
    from inferplane.text.tokenizer import Tokenizer
    from inferplane_api.step import TokenLogprobs

FLOOR = -9999.0
_CACHED_TOKENS = 65536


class TokenNames:
    """What a token is called in an answer: its text, or `token_id:N`."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.text = lru_cache(maxsize=_CACHED_TOKENS)(self._text)
        self.bytes = lru_cache(maxsize=_CACHED_TOKENS)(self._bytes)

    def name(self, token_id: int, as_id: bool) -> str:
        """The token's text, or its id in words."""
        return f"token_id:{token_id}" if as_id or self._tokenizer is None else self.text(token_id)

    def _text(self, token_id: int) -> str:
        """Part of a character is U+FFFD."""
        return "" if self._tokenizer is None else self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _bytes(self, token_id: int) -> tuple[int, ...] | None:
        return None if self._tokenizer is None else tuple(self._tokenizer.token_bytes(token_id))


def floored(logprob: float) -> float:
    """JSON has no minus infinity."""
    return max(logprob, FLOOR)


def chat_logprobs(entries: Sequence[TokenLogprobs], names: TokenNames, num_top: int, as_ids: bool) -> ChatLogprobs:
    """num_top: how many of the most likely tokens are listed; -1: all that came."""

    def spelled(token_id: int) -> list[int] | None:
        found = names.bytes(token_id)
        return None if found is None else list(found)

    content = []
    for entry in entries:
        top = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        top = top if num_top < 0 else top[:num_top]
        if entry.listed_ids:
            named = dict(top)
            top += [pair for pair in zip(entry.listed_ids, entry.listed_logprobs, strict=True) if pair[0] not in named]
        content.append(
            ChatLogprob(
                names.name(entry.token_id, as_ids),
                floored(entry.logprob),
                spelled(entry.token_id),
                [
                    TopLogprob(names.name(token_id, as_ids), floored(logprob), spelled(token_id))
                    for token_id, logprob in top
                ],
            )
        )
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Columns of one completion, over all its chunks: text offsets go on where the last chunk ended.

    An offset is where the text stood before the token, so tokens that share a character share an offset, and one whose
    text is left out takes no room.
    """

    def __init__(self, names: TokenNames, num_top: int, as_ids: bool, stream: TextStream | None = None) -> None:
        """stream: decodes the sequence; None without a tokenizer, where every offset is 0."""
        self._names = names
        self._num_top = num_top
        self._as_ids = as_ids
        self._stream = stream
        self._offset = 0

    def write(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """The columns of these tokens; an entry is None where nothing came before the token."""
        columns = CompletionLogprobs([], [], [], [])
        for token_id, entry in zip(token_ids, entries, strict=True):
            columns.text_offset.append(self._offset)
            columns.tokens.append(self._names.name(token_id, self._as_ids))
            if self._stream is not None:
                self._offset += len(self._stream.push(token_id))
            columns.token_logprobs.append(None if entry is None else floored(entry.logprob))
            columns.top_logprobs.append(None if entry is None else self._top(entry))
        return columns

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens, and the token itself where it is not one of them."""
        pairs = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        kept = pairs if self._num_top < 0 else pairs[: self._num_top]
        table: dict[str, float] = {}
        listed = zip(entry.listed_ids, entry.listed_logprobs, strict=True)
        for token_id, logprob in (*kept, (entry.token_id, entry.logprob), *listed):
            table.setdefault(self._names.name(token_id, self._as_ids), floored(logprob))
        return table


def prompt_logprobs(entries: Sequence[TokenLogprobs | None] | None, names: TokenNames) -> PromptLogprobs | None:
    """Per position, token id to {logprob, rank, decoded_token}."""
    if entries is None:
        return None
    positions: PromptLogprobs = []
    for entry in entries:
        if entry is None:
            positions.append(None)
            continue
        ranked = [(entry.token_id, entry.logprob, entry.rank)]
        pairs = zip(entry.top_ids, entry.top_logprobs, strict=True)
        ranked += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(pairs, start=1)]
        table: dict[str, dict[str, object]] = {}
        for token_id, logprob, rank in ranked:
            value = {"logprob": floored(logprob), "rank": rank, "decoded_token": names.text(token_id)}
            table.setdefault(str(token_id), value)
        positions.append(table)
    return positions
