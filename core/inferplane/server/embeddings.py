"""POST /v1/embeddings: texts, tokens or a conversation to vectors, however many at a time the engine takes."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI, Request, Response

from inferplane.client.pooling import WHOLE_CONTEXT, build_pooling_request, encode_texts, pooling_params, vector_of
from inferplane.errors import InferplaneError, QueueFull, TookTooLong
from inferplane.server.body import fields_of, parse_body, read_raw
from inferplane.server.claim import claim_of
from inferplane.server.description import ENGINE_ERRORS
from inferplane.server.embedding_schema import Embedding, EmbeddingBody, EmbeddingChatBody, EmbeddingList
from inferplane.server.errors import CLIENT_CLOSED, ApiError, bad_value, not_supported, shutting_down, to_api_error
from inferplane.server.generation import MAX_CHARACTERS_PER_TOKEN, PromptInput
from inferplane.server.identity import rename
from inferplane.server.responses import PromptTokensDetails, Usage
from inferplane.server.sse import attended, until_disconnect
from inferplane.server.templating import render_conversation
from inferplane.server.validation import check_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferplane.client.interface import RequestStream
    from inferplane.messages import Delta
    from inferplane.messages import Request as EngineRequest
    from inferplane.server.claim import Claim
    from inferplane.server.context import ServerContext
    from inferplane.server.description import Description
    from inferplane_api.pooling import PoolingParams

PATH = "/v1/embeddings"

_MIN_CHARACTERS = 2**16
_OPEN_BATCHES = 3
"""Of a request with many inputs: one is computed, one waits, and one may be on its way back."""
_STATUS = {"queue_timeout": 503, "refused": 400}
"""Of what the engine gives up, by its error code; everything else is a 500."""

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

    @app.post(PATH, **described)
    async def embeddings(request: Request) -> Response:
        raw = await read_raw(request, size)
        kind: type[Body] = EmbeddingChatBody if "messages" in fields_of(raw) else EmbeddingBody
        body = parse_body(raw, kind, PATH, context.warned)
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
        work = _Work(context, prompts, params, body, claim)
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
        longest = max(map(len, texts))
        bound = max(_MIN_CHARACTERS, MAX_CHARACTERS_PER_TOKEN * context.max_model_len)
        if longest > bound:
            problem = (
                f"a text of {longest} characters does not fit {context.max_model_len} tokens; at most {bound} may be"
            )
            raise bad_value(field, problem, code="context_length_exceeded")
        plan, special = context.prepared.plan, body.add_special_tokens
        ids = await context.text.tokenizer.run(
            lambda: encode_texts(tokenizer, texts, plan, truncate=most, special=special)
        )
        encoded = iter(ids)
    return [
        PromptInput(each, next(encoded)) if isinstance(each, str) else PromptInput(None, each[:most]) for each in inputs
    ]


class _Work:
    """The vectors of one API request on their way."""

    def __init__(
        self, context: ServerContext, prompts: list[PromptInput], params: PoolingParams, body: Body, claim: Claim
    ) -> None:
        """Raises ContextTooLong or InvalidValue; nothing has started yet."""
        self._context = context
        self._claim = claim
        # The client's own id may not be unique, the engine's must be.
        unique = f"{body.request_id}-{uuid.uuid4().hex[:16]}"
        limits = context.limits()
        self._requests = [
            build_pooling_request(
                prompt.token_ids,
                params,
                limits,
                client_id=context.client.client_id,
                request_id=f"{unique}-{index}",
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
            )
            for index, prompt in enumerate(prompts)
        ]
        self._vectors: list[bytes | None] = [None] * len(prompts)
        self._num_cached = 0
        if context.request_log.requests:
            context.request_log.request(body.request_id or unique, prompts, self._requests[0].params)

    async def vectors(self) -> list[bytes]:
        """Little-endian float32, in the order of the prompts. Whatever ends this early aborts what still runs.

        Raises QueueFull, EngineDead or TookTooLong, or ApiError when the engine gives a prompt up.
        """
        self._context.require_ready()
        self._context.num_running += 1
        streams: deque[tuple[int, RequestStream]] = deque()
        batches = self._batches()
        try:
            async with asyncio.timeout(self._claim.left()):
                self._fill(streams, batches)
                while streams:
                    first, stream = streams[0]
                    async for index, delta in stream:
                        self._take(first + index, delta)
                    streams.popleft()
                    self._fill(streams, batches)
        except TimeoutError:
            seconds = self._claim.request_timeout
            raise TookTooLong(f"the request is not done after the {seconds:g} s that it may take") from None
        finally:
            self._context.num_running -= 1
            for _, stream in streams:
                stream.abort()
            for vector in self._vectors:
                if vector is None:
                    self._context.metrics.finished("abort")
        return [vector for vector in self._vectors if vector is not None]

    def usage(self) -> Usage:
        """Of all prompts."""
        total = sum(len(request.prompt_token_ids) for request in self._requests)
        details = self._context.server.enable_prompt_tokens_details
        return Usage(
            prompt_tokens=total,
            total_tokens=total,
            completion_tokens=0,
            prompt_tokens_details=PromptTokensDetails(self._num_cached) if details else None,
        )

    def _batches(self) -> deque[int]:
        """Where each batch begins: as many prompts as the engine computes at a time, so that one request of very many
        leaves room in the queue for others."""
        return deque(range(0, len(self._requests), self._context.client.capacity.max_num_seqs))

    def _fill(self, streams: deque[tuple[int, RequestStream]], batches: deque[int]) -> None:
        """Keep a few batches with the engine. A full queue is an error only while nothing of this request runs."""
        size = self._context.client.capacity.max_num_seqs
        queue_left = self._claim.queue_left()
        while batches and len(streams) < _OPEN_BATCHES:
            requests: list[EngineRequest] = [
                msgspec.structs.replace(request, share=self._claim.share, queue_timeout=queue_left)
                for request in self._requests[batches[0] : batches[0] + size]
            ]
            try:
                stream = self._context.client.submit(requests)
            except QueueFull as error:
                if streams:
                    return
                self._context.metrics.rejected(f"queue_{error.reason}")
                raise
            streams.append((batches.popleft(), stream))

    def _take(self, index: int, delta: Delta) -> None:
        metrics = self._context.metrics
        if delta.queue_seconds is not None:
            metrics.queue_time.observe(delta.queue_seconds)
        self._num_cached += delta.num_cached_tokens or 0
        if delta.finish_reason == "error":
            raise self._given_up(delta)
        if delta.finish_reason == "abort":
            raise shutting_down()
        if delta.pooled is None:
            return
        self._vectors[index] = delta.pooled
        metrics.finished("stop")
        metrics.prompt_tokens.observe(len(self._requests[index].prompt_token_ids))
        metrics.e2e_latency.observe(time.monotonic() - self._claim.since)

    def _given_up(self, delta: Delta) -> ApiError:
        message = delta.error or "the engine gave the request up"
        status = _STATUS.get(delta.error_code, 500)
        headers = {}
        if delta.error_code == "queue_timeout":
            self._context.metrics.rejected("queue_timeout")
            headers = {"Retry-After": "5"}
        code = delta.error_code or "pooling_failed"
        return ApiError(status, message, code=code, kind="server_error", headers=headers)
