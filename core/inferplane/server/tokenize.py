"""POST /tokenize and /detokenize, GET /tokenizer_info: what the server's tokenizer is, and makes of texts and ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.errors import InferplaneError
from inferplane.server.errors import bad_value, not_supported, to_api_error
from inferplane.server.prompts import encode_prompt, require_tokenizer
from inferplane.server.schema import TokenizeBody
from inferplane.server.templating import render_conversation
from inferplane.server.validation import check_model

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext
    from inferplane.server.schema import DetokenizeBody, TokenizeChatBody


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """A text as tokens; token_strs only where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    """Tokens as a text, special tokens included."""

    prompt: str


def tokenizer_info(context: ServerContext) -> dict[str, Any]:
    """The settings of the tokenizer as the checkpoint has them, with the chat template in use.

    Raises ApiError 400 where the checkpoint has no tokenizer.
    """
    tokenizer = require_tokenizer(context, "tokenizer")
    prepared = context.prepared
    settings = dict(prepared.plan.card.tokenizer_config)
    settings.setdefault("tokenizer_class", type(tokenizer).__name__)
    settings["chat_template"] = prepared.config.model.chat_template or prepared.plan.card.chat_template
    return settings


async def tokenize(context: ServerContext, body: TokenizeBody | TokenizeChatBody) -> Tokenized:
    """Raises ApiError."""
    check_model(body.model, context.prepared.served_names)
    field = "prompt" if isinstance(body, TokenizeBody) else "messages"
    tokenizer = require_tokenizer(context, field)
    try:
        if isinstance(body, TokenizeBody):
            text = body.prompt
        else:
            if body.tools is not None:
                raise not_supported("tools")
            text = await context.text.templates.run(render_conversation, context, body)
    except InferplaneError as error:
        raise to_api_error(error, {"prompt": field}) from error
    prompt = await encode_prompt(context, text, field=field, add_special_tokens=body.add_special_tokens)
    ids = prompt.token_ids
    strings = tokenizer.ids_to_tokens(ids) if body.return_token_strs else None
    return Tokenized(count=len(ids), max_model_len=context.max_model_len, tokens=ids, token_strs=strings)


async def detokenize(context: ServerContext, body: DetokenizeBody) -> Detokenized:
    """Raises ApiError."""
    check_model(body.model, context.prepared.served_names)
    tokenizer = require_tokenizer(context, "tokens")
    vocab_size = context.prepared.plan.model.vocab_size
    if any(not 0 <= token_id < vocab_size for token_id in body.tokens):
        raise bad_value("tokens", f"token ids of this model are 0 to {vocab_size - 1}")
    text = await context.text.tokenizer.run(tokenizer.decode, body.tokens, False)
    return Detokenized(text)
