"""Every path and its function; what a route does is elsewhere. The description of the API is made from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response

from inferplane.metrics import CONTENT_TYPE
from inferplane.server import developer, health, models
from inferplane.server.body import fields_of, parse_body, read_body, read_raw
from inferplane.server.chat import create_chat_completion
from inferplane.server.completions import create_completion
from inferplane.server.description import BODY_ERRORS, ENGINE_ERRORS, Description
from inferplane.server.embeddings import add_embedding_routes
from inferplane.server.errors import bad_value
from inferplane.server.identity import rename
from inferplane.server.render import Rendered, render_chat, render_completion
from inferplane.server.responses import ChatCompletion, Completion
from inferplane.server.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, TokenizeChatBody
from inferplane.server.sse import encode
from inferplane.server.tokenize import Detokenized, Tokenized, detokenize, tokenize, tokenizer_info

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext

_EVENTS = "Server-sent events: chunks, then [DONE]; with `stream` only."


def add_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    """All of them."""
    _add_generation_routes(app, context, description)
    add_embedding_routes(app, context, description)
    _add_render_routes(app, context, description)
    _add_text_routes(app, context, description)
    _add_model_routes(app, context, description)
    _add_health_routes(app, context, description)
    _add_record_routes(app, context, description)
    if context.server.server_dev_mode:
        _add_developer_routes(app, context, description)


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")


async def _complete(context: ServerContext, request: Request, body: CompletionBody) -> Response:
    context.require_task("generate")
    body.request_id = rename(request.scope, body.request_id)
    return await create_completion(context, request, body)


async def _chat(context: ServerContext, request: Request, body: ChatBody) -> Response:
    context.require_task("generate")
    body.request_id = rename(request.scope, body.request_id)
    return await create_chat_completion(context, request, body)


def _add_generation_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    warned, size = context.warned, context.server.max_body_size
    completion = description.route(
        "Complete prompts", CompletionBody, answer=Completion, stream=_EVENTS, errors=ENGINE_ERRORS
    )
    chat = description.route(
        "Answer a conversation", ChatBody, answer=ChatCompletion, stream=_EVENTS, errors=ENGINE_ERRORS
    )
    either = description.route(
        "Whatever the body's fields ask for", ChatBody, CompletionBody, stream=_EVENTS, errors=ENGINE_ERRORS
    )

    @app.post("/v1/completions", **completion)
    async def completions(request: Request) -> Response:
        return await _complete(context, request, await read_body(request, CompletionBody, warned, size))

    @app.post("/v1/chat/completions", **chat)
    async def chat_completions(request: Request) -> Response:
        return await _chat(context, request, await read_body(request, ChatBody, warned, size))

    @app.post("/invocations", **either)
    async def invocations(request: Request) -> Response:
        raw = await read_raw(request, size)
        fields, path = fields_of(raw), request.scope["path"]
        if "messages" in fields:
            return await _chat(context, request, parse_body(raw, ChatBody, path, warned))
        if "prompt" in fields:
            return await _complete(context, request, parse_body(raw, CompletionBody, path, warned))
        raise bad_value("messages", "a body needs messages or prompt", code="missing_value")


def _add_render_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    warned, size = context.warned, context.server.max_body_size
    chat = description.route("Show a conversation as the model reads it", ChatBody, answer=Rendered, errors=BODY_ERRORS)
    completion = description.route(
        "Show prompts as the model reads them", CompletionBody, answer=list[Rendered], errors=BODY_ERRORS
    )

    @app.post("/v1/chat/completions/render", **chat)
    async def render_chat_route(request: Request) -> Response:
        body = await read_body(request, ChatBody, warned, size)
        return _json(await render_chat(context, body, rename(request.scope, body.request_id)))

    @app.post("/v1/completions/render", **completion)
    async def render_completion_route(request: Request) -> Response:
        body = await read_body(request, CompletionBody, warned, size)
        return _json(await render_completion(context, body, rename(request.scope, body.request_id)))


def _add_text_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    warned, size = context.warned, context.server.max_body_size
    encoded = description.route(
        "Make tokens of a text or a conversation", TokenizeBody, TokenizeChatBody, answer=Tokenized, errors=BODY_ERRORS
    )
    decoded = description.route("Make a text of tokens", DetokenizeBody, answer=Detokenized, errors=BODY_ERRORS)

    @app.post("/tokenize", **encoded)
    async def tokenize_route(request: Request) -> Response:
        raw = await read_raw(request, size)
        kind: type[TokenizeBody | TokenizeChatBody] = TokenizeChatBody if "messages" in fields_of(raw) else TokenizeBody
        return _json(await tokenize(context, parse_body(raw, kind, request.scope["path"], warned)))

    @app.post("/detokenize", **decoded)
    async def detokenize_route(request: Request) -> Response:
        return _json(await detokenize(context, await read_body(request, DetokenizeBody, warned, size)))

    if context.server.enable_tokenizer_info_endpoint:

        @app.get("/tokenizer_info", **description.route("The tokenizer's settings", errors=(400, 401, 500)))
        async def tokenizer_info_route() -> Response:
            return _json(tokenizer_info(context))


def _add_model_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    @app.get("/v1/models", **description.route("The served names", answer=models.ModelList))
    async def list_models() -> Response:
        return _json(models.list_models(context))

    one = description.route("One served name", answer=models.ModelCard, errors=(401, 404, 500))

    @app.get("/v1/models/{name:path}", **one)
    async def one_model(name: str) -> Response:
        return _json(models.one_model(context, name))


def _add_health_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    well = description.route("Is the engine well?", answer=health.Health, errors=(500, 503))

    @app.head("/health", operation_id="health_head", include_in_schema=False)
    @app.get("/health", **well)
    async def health_route() -> Response:
        return _json(health.health(context))

    @app.head("/ping", operation_id="ping_head", include_in_schema=False)
    @app.get("/ping", operation_id="ping", **well)
    @app.post("/ping", operation_id="ping_post", **well)
    async def ping() -> Response:
        return _json(health.health(context))

    @app.head("/version", operation_id="version_head", include_in_schema=False)
    @app.get("/version", **description.route("Version of the core", answer=health.Version))
    async def version() -> Response:
        return _json(health.version())

    @app.get("/load", **description.route("Requests under way", answer=health.Load))
    async def load() -> Response:
        return _json(health.load(context))


def _add_record_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    @app.get("/server_info", **description.route("What was chosen and why"))
    async def server_info() -> Response:
        return _json(health.server_info(context))

    @app.get("/startup", **description.route("How long starting took", answer=health.Startup))
    async def startup() -> Response:
        return _json(health.startup(context))

    @app.get("/metrics", **description.route("Prometheus text", answer=str, media_type=CONTENT_TYPE))
    async def metrics() -> Response:
        return Response(context.metrics.render(), media_type=CONTENT_TYPE)


def _add_developer_routes(app: FastAPI, context: ServerContext, description: Description) -> None:
    reset = description.route("Forget cached prefixes", answer=developer.Done, errors=(401, 500, 503))

    @app.post("/reset_prefix_cache", **reset)
    async def reset_prefix_cache() -> Response:
        return _json(await developer.reset_prefix_cache(context))
