"""Token ids to text as they come, and the stop strings in that text; knows no request beyond its parameters."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, NamedTuple

from inferplane.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.text.token_decoding import TokenDecoding
    from inferplane.text.tokenizer import Tokenizer
    from inferplane_api.sampling import SamplingParams

_REPLACEMENT = "\ufffd"
PROMPT_TAIL = 8
"""Tokens of the prompt that can matter: a character has at most four bytes, and special tokens may stand between."""


class Increment(NamedTuple):
    """What some tokens added to the text."""

    text: str
    """To append to what was given before. May be empty: part of a character, or of what could become a stop string."""
    stop: str | None
    """The stop string that ended the text."""
    num_tokens_used: int
    """Of the pushed tokens, those that the text came from: fewer than pushed only when a stop string matched."""


class Detokenizer:
    """The text of one sequence. All increments and `finish` put together are the text of the answer.

    Constant work per token. `prompt_tail_ids`: the prompt or its last tokens, so that an answer that goes on within a
    word or a character starts right; empty where the answer is a text of its own.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, params: SamplingParams, prompt_tail_ids: Sequence[int] = ()
    ) -> None:
        self._stream: TextStream | None = None
        if tokenizer is not None and params.detokenize:
            self._stream = TextStream(tokenizer, params.skip_special_tokens, params.spaces_between_special_tokens)
            self._stream.prime(prompt_tail_ids[-PROMPT_TAIL:])
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output) if params.stop else None
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._num_tokens = 0
        self.stop: str | None = None
        """The stop string that ended the text; nothing is taken afterwards."""

    def push(self, token_ids: Sequence[int], stopped_by_token: bool = False) -> Increment:
        """Take the sequence's next tokens. `stopped_by_token`: the last of them is EOS or a stop token, whose text is
        left out unless include_stop_str_in_output asks for it."""
        if self.stop is not None:
            return Increment("", self.stop, 0)
        if self._stream is None:
            self._num_tokens += len(token_ids)
            return Increment("", None, len(token_ids))
        left_out = len(token_ids) - 1 if stopped_by_token and not self._include_stop else -1
        parts = []
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            text = self._stream.push(token_id) if index != left_out else ""
            if self._stops is not None:
                text, self.stop = self._stops.feed(text, armed=self._num_tokens > self._min_tokens)
            parts.append(text)
            if self.stop is not None:
                return Increment("".join(parts), self.stop, index + 1)
        return Increment("".join(parts), None, len(token_ids))

    def push_one(self, token_id: int) -> str:
        """The same for one token that ends nothing, as every step of a decode has; see `stop` afterwards."""
        if self.stop is not None:
            return ""
        self._num_tokens += 1
        if self._stream is None:
            return ""
        text = self._stream.push(token_id)
        stops = self._stops
        if stops is None or (not stops.held and stops.beginnings.isdisjoint(text)):
            return text
        text, self.stop = stops.feed(text, armed=self._num_tokens > self._min_tokens)
        return text

    def finish(self) -> str:
        """The end of the text, once no more tokens come: what was held back. A cut character becomes U+FFFD."""
        if self._stream is None or self.stop is not None:
            return ""
        text = self._stream.finish()
        if self._stops is None:
            return text
        text, self.stop = self._stops.feed(text, armed=self._num_tokens > self._min_tokens)
        return text if self.stop is not None else text + self._stops.flush()


class TextStream:
    """Decoding token by token. All pieces and `finish` put together are the text of the ids."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, spaces_between_special_tokens: bool) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        decoding = tokenizer.decoding
        self._pieces: _Bytes | _Fragments | _Windows
        if decoding is None:
            self._pieces = _Windows(tokenizer, spaces_between_special_tokens)
        elif decoding.byte_level:
            self._pieces = _Bytes(tokenizer)
        else:
            self._pieces = _Fragments(tokenizer, decoding)
        self._push = self._pieces.push

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return "" if token_id in self._skipped else self._push(token_id)

    def finish(self) -> str:
        """What is still held back."""
        return self._pieces.finish()

    def prime(self, token_ids: Sequence[int]) -> None:
        """Take tokens whose text is known already."""
        for token_id in token_ids:
            self.push(token_id)


class _Bytes:
    """Byte-level vocabularies: UTF-8 over the bytes of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._whole = tokenizer.whole_texts
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._within_character = False

    def push(self, token_id: int) -> str:
        whole = self._whole.get(token_id)
        if whole is not None and not self._within_character:
            return whole
        piece = self._tokenizer.piece(token_id)
        if piece.text is not None and not self._within_character:
            return piece.text
        text = self._utf8.decode(piece.data)
        self._within_character = bool(self._utf8.getstate()[0])
        return text

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Fragments:
    """SentencePiece vocabularies: tokens are text, but for runs of single bytes.

    In a run, whole characters come out as soon as they are complete, and every byte that belongs to none is a U+FFFD,
    as in SentencePiece. The `tokenizers` library differs where a run holds both: there the whole run is U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, decoding: TokenDecoding) -> None:
        self._tokenizer = tokenizer
        self._decoding = decoding
        self._strip = decoding.strip_left
        self._at_start = True
        self._whole = tokenizer.whole_texts
        self._run = b""

    def push(self, token_id: int) -> str:
        whole = self._whole.get(token_id)
        if whole is not None and not (self._at_start or self._run or self._strip):
            return whole
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return ""
        if self._decoding.is_byte(token):
            self._run += self._decoding.token_bytes(token)
            text = self._complete_characters()
        else:
            text = self._text(token)
            if not self._at_start:
                self._whole[token_id] = text
            text = self._end_run() + text
        self._at_start = False
        return self._stripped(text)

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _text(self, token: str) -> str:
        first_without_marks = self._at_start and self._decoding.first_without_marks
        for mark, text in self._decoding.replacements:
            token = token.replace(mark, "" if first_without_marks else text)
        return token

    def _complete_characters(self) -> str:
        text = ""
        while self._run:
            try:
                text += self._run.decode("utf-8")
                self._run = b""
            except UnicodeDecodeError as error:
                text += self._run[: error.start].decode("utf-8")
                self._run = self._run[error.start :]
                if error.reason == "unexpected end of data":
                    break
                num_bad = error.end - error.start
                text += _REPLACEMENT * num_bad
                self._run = self._run[num_bad:]
        return text

    def _end_run(self) -> str:
        text, self._run = _REPLACEMENT * len(self._run), b""
        return text

    def _stripped(self, text: str) -> str:
        if not self._strip or not text:
            return text
        kept = text.lstrip(" ") if len(text) - len(text.lstrip(" ")) <= self._strip else text[self._strip :]
        self._strip = 0 if kept else self._strip - len(text)
        return kept


class _Windows:
    """Any other decoder: decode a short window of tokens without and with the new one, and take the difference.

    The window starts at a place where the text was whole, so the work per token is bounded.
    """

    def __init__(self, tokenizer: Tokenizer, spaces_between_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._spaces_between = spaces_between_special_tokens
        self._ids: list[int] = []
        self._num_read = 0
        """Of `_ids`, those whose text was given."""
        self._last_added = False

    def push(self, token_id: int) -> str:
        if self._tokenizer.id_to_token(token_id) is None:
            return ""
        before = self._decode(self._ids[: self._num_read])
        self._ids.append(token_id)
        now = self._decode(self._ids)
        if now.endswith(_REPLACEMENT) and len(self._ids) - self._num_read < 8:
            return ""
        text = self._without_space(token_id, now[len(before) :])
        self._ids = self._ids[self._num_read :]
        self._num_read = len(self._ids)
        return text

    def finish(self) -> str:
        return self._decode(self._ids)[len(self._decode(self._ids[: self._num_read])) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode_whole(ids, skip_special_tokens=False)

    def _without_space(self, token_id: int, text: str) -> str:
        is_added = token_id in self._tokenizer.added_tokens
        joined = is_added and self._last_added and not self._spaces_between
        self._last_added = is_added
        return text.removeprefix(" ") if joined else text
