"""Words that must not be generated as sequences of token ids; knows a tokenizer and no request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.text.tokenizer import Tokenizer


def bad_word_sequences(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is written at the beginning of a text and, where that begins with another token and is as long,
    after a space. The same choice as vLLM's; other spellings of a word (in capitals, over other tokens) stay possible.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        sequences[bare] = None
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences[spaced] = None
    return tuple(sequences)
