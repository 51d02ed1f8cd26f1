"""From a client's text to the tokens of a prompt, within limits; knows no field of a body and nothing of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inferplane.server.errors import bad_value

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext
    from inferplane.text.tokenizer import Tokenizer

MAX_CHARACTERS_PER_TOKEN = 64
"""On average, over a whole prompt: no text that people write comes near."""
_MIN_CHARACTERS = 2**16


class PromptInput(NamedTuple):
    """A prompt as text, where there is one, and as tokens."""

    text: str | None
    token_ids: list[int]


def require_tokenizer(context: ServerContext, field: str) -> Tokenizer:
    """The tokenizer. Raises ApiError 400 where the checkpoint has none."""
    tokenizer = context.prepared.tokenizer
    if tokenizer is None:
        raise bad_value(field, "this model has no tokenizer; send token ids to /v1/completions", code="no_tokenizer")
    return tokenizer


def require_fitting(context: ServerContext, num_characters: int, field: str) -> None:
    """Raises ApiError 400 for a text that no tokenizer would fit into the context; it is not worth reading."""
    most = max(_MIN_CHARACTERS, MAX_CHARACTERS_PER_TOKEN * context.max_model_len)
    if num_characters > most:
        problem = f"{num_characters} characters do not fit {context.max_model_len} tokens; at most {most} are read"
        raise bad_value(field, problem, code="context_length_exceeded")


async def encode_prompt(
    context: ServerContext, text: str, *, field: str, add_special_tokens: bool, truncate: int | None = None
) -> PromptInput:
    """Tokenize on a thread; the event loop goes on."""
    tokenizer = require_tokenizer(context, field)
    require_fitting(context, len(text), field)
    ids = await context.text.tokenizer.run(tokenizer.encode, text, add_special_tokens)
    return PromptInput(text, truncated(context, ids, truncate))


def truncated(context: ServerContext, ids: list[int], limit: int | None) -> list[int]:
    """The last `limit` ids; -1: as many as the context holds beside one generated token; None: all."""
    if limit is None:
        return ids
    keep = context.max_model_len - 1 if limit == -1 else limit
    return ids[-keep:] if keep else []
