"""POST /v1/embeddings: texts, tokens or a conversation to vectors. Knows the shapes, not how the engine is asked."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI, Request, Response

from inferplane.client.pooling import WHOLE_CONTEXT, encode_texts, pooling_params, vector_of
from inferplane.errors import InferplaneError
from inferplane.server.body import fields_of, parse_body, read_raw
from inferplane.server.claim import claim_of
from inferplane.server.description import ENGINE_ERRORS
from inferplane.server.embedding_schema import Embedding, EmbeddingBody, EmbeddingChatBody, EmbeddingList
from inferplane.server.embedding_work import EmbeddingWork
from inferplane.server.errors import CLIENT_CLOSED, bad_value, not_supported, to_api_error
from inferplane.server.identity import rename
from inferplane.server.prompts import PromptInput, require_fitting
from inferplane.server.sse import attended, until_disconnect
from inferplane.server.templating import render_conversation
from inferplane.server.validation import check_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferplane.server.context import ServerContext
    from inferplane.server.description import Description

Body = EmbeddingBody | EmbeddingChatBody


def add_embedding_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    """The one route."""
    size = context.server.max_body_size
    described = description.route(
        "Embed texts, tokens or a conversation",
        EmbeddingBody,
        EmbeddingChatBody,
        answer=EmbeddingList,
        errors=ENGINE_ERRORS,
    )

    @app.post("/v1/embeddings", **described)
    async def embeddings(request: Request) -> Response:
        raw = await read_raw(request, size)
        kind: type[Body] = EmbeddingChatBody if "messages" in fields_of(raw) else EmbeddingBody
        body = parse_body(raw, kind, request.scope["path"], context.warned)
        body.request_id = rename(request.scope, body.request_id)
        return await create_embedding(context, request, body)


async def create_embedding(context: ServerContext, request: Request, body: Body) -> Response:
    """The route's work. Raises ApiError."""
    model = check_model(body.model, context.prepared.served_names)
    context.require_task("embed")
    context.require_ready()
    for field, values in body.neutral.items():
        value = getattr(body, field)
        if value is not None and value not in values:
            raise not_supported(field)
    field = "input" if isinstance(body, EmbeddingBody) else "messages"
    try:
        params = pooling_params(context.prepared.plan, body.dimensions, _normalize(body))
        claim = claim_of(request, context.server, body.user)
        prompts = await attended(request, claim, _prompts(context, body, field))
        work = EmbeddingWork(context, prompts, params, body, claim)
    except InferplaneError as error:
        raise to_api_error(error, {"prompt": field}) from error
    vectors = await until_disconnect(request.receive, work.vectors())
    if vectors is None:
        return Response(status_code=CLIENT_CLOSED)
    as_text = body.encoding_format == "base64"
    answer = EmbeddingList(
        id=f"embd-{body.request_id}",
        created=int(time.time()),
        model=model,
        data=[
            Embedding(index=index, embedding=base64.b64encode(vector).decode() if as_text else vector_of(vector))
            for index, vector in enumerate(vectors)
        ],
        usage=work.usage(),
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _normalize(body: Body) -> bool | None:
    """Two names for one switch."""
    if None not in (body.normalize, body.use_activation) and body.normalize != body.use_activation:
        raise bad_value("use_activation", "contradicts normalize")
    return body.use_activation if body.normalize is None else body.normalize


async def _prompts(context: ServerContext, body: Body, field: str) -> list[PromptInput]:
    """What is embedded, as the model reads it."""
    most = body.truncate_prompt_tokens
    if most == 0:
        raise bad_value("truncate_prompt_tokens", "must be -1 or at least 1")
    most = context.max_model_len if most == WHOLE_CONTEXT else most
    tokenizer = context.prepared.tokenizer
    if isinstance(body, EmbeddingChatBody):
        if context.prepared.chat_template is None and body.chat_template is None:
            problem = "this model has no chat template; send input, or start the server with --chat-template"
            raise bad_value("messages", problem, code="no_chat_template")
        if body.add_generation_prompt is None:
            body.add_generation_prompt = False
        inputs: list[str | list[int]] = [await context.text.templates.run(render_conversation, context, body)]
    elif body.input is None:
        raise bad_value("input", "field required", code="missing_value")
    else:
        inputs = body.input
    texts = [text for text in inputs if isinstance(text, str)]
    encoded: Iterator[list[int]] = iter(())
    if texts:
        if tokenizer is None:
            raise bad_value(field, "this model has no tokenizer; send token ids", code="no_tokenizer")
        require_fitting(context, max(map(len, texts)), field)
        plan, special = context.prepared.plan, body.add_special_tokens
        ids = await context.text.tokenizer.run(
            lambda: encode_texts(tokenizer, texts, plan, truncate=most, special=special)
        )
        encoded = iter(ids)
    return [
        PromptInput(each, next(encoded)) if isinstance(each, str) else PromptInput(None, each[:most]) for each in inputs
    ]
