"""POST /v1/chat/completions/render and /v1/completions/render: what a request would ask the model; needs no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.errors import InferplaneError
from inferplane.server.chat import chat_prompt
from inferplane.server.completions import completion_prompts
from inferplane.server.errors import bad_value, to_api_error
from inferplane.server.generation import Sampling, sampling
from inferplane.server.validation import (
    chat_field_names,
    chat_values,
    check_body,
    check_model,
    completion_values,
)

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext
    from inferplane.server.prompts import PromptInput
    from inferplane.server.schema import ChatBody, CompletionBody


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt. It may be longer than the context, which the request itself may not."""

    request_id: str
    model: str
    prompt: str | None
    """The text, special tokens included; None where the model has no tokenizer."""
    token_ids: list[int]
    max_model_len: int
    sampling_params: dict[str, Any]
    """The client's values over the model's over the API's; max_tokens fits the context."""


async def render_chat(context: ServerContext, body: ChatBody, request_id: str) -> Rendered:
    """Raises ApiError."""
    model = check_model(body.model, context.prepared.served_names)
    check_body(body, 1)
    try:
        how = sampling(context, chat_values(body, context.prepared.plan.model.vocab_size), "chat")
        prompt = await chat_prompt(context, body)
    except InferplaneError as error:
        raise to_api_error(error, chat_field_names(body)) from error
    return _rendered(context, prompt, how, model, f"chatcmpl-{request_id}")


async def render_completion(context: ServerContext, body: CompletionBody, request_id: str) -> list[Rendered]:
    """One for every prompt. Raises ApiError."""
    model = check_model(body.model, context.prepared.served_names)
    check_body(body, len(body.prompt or ()))
    try:
        how = sampling(context, completion_values(body, context.prepared.plan.model.vocab_size), "completions")
        prompts = await completion_prompts(context, body)
    except InferplaneError as error:
        raise to_api_error(error) from error
    return [_rendered(context, prompt, how, model, f"cmpl-{request_id}") for prompt in prompts]


def _rendered(context: ServerContext, prompt: PromptInput, how: Sampling, model: str, request_id: str) -> Rendered:
    text, tokenizer = prompt.text, context.prepared.tokenizer
    if text is None:
        vocab_size = context.prepared.plan.model.vocab_size
        if any(not 0 <= token_id < vocab_size for token_id in prompt.token_ids):
            raise bad_value("prompt", f"token ids of this model are 0 to {vocab_size - 1}")
        text = None if tokenizer is None else tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    room = context.max_model_len - len(prompt.token_ids)
    params = how.fitted(room)
    if params.max_tokens is None and room > 0:
        params = msgspec.structs.replace(params, max_tokens=room)
    return Rendered(
        request_id=request_id,
        model=model,
        prompt=text,
        token_ids=prompt.token_ids,
        max_model_len=context.max_model_len,
        sampling_params=msgspec.structs.asdict(params),
    )
