"""The application: routes, middleware and error answers put together. Knows no shape and no rule itself."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from inferplane import __version__
from inferplane.errors import InferplaneError
from inferplane.metrics import CONTENT_TYPE
from inferplane.server import health, models
from inferplane.server.body import has_field, parse_body, read_body, read_raw
from inferplane.server.chat import create_chat_completion
from inferplane.server.completions import create_completion
from inferplane.server.context import ServerContext
from inferplane.server.errors import ApiError, handle_error, handle_http_exception
from inferplane.server.middleware import Authentication, HttpMetrics
from inferplane.server.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, TokenizeChatBody
from inferplane.server.sse import encode
from inferplane.server.tokenize import detokenize, tokenize

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic import BaseModel

    from inferplane.launch_types import Service


def create_app(service: Service) -> FastAPI:
    """The application for a prepared model and its engine. When it shuts down, it closes the engine's client."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        yield
        await service.client.close()

    context = ServerContext(service)
    app = FastAPI(title="Inferplane", version=__version__, lifespan=lifespan, redirect_slashes=False)
    app.state.context = context
    for kind in (ApiError, InferplaneError, Exception):
        app.add_exception_handler(kind, handle_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    _add_generation_routes(app, context)
    _add_text_routes(app, context)
    _add_model_routes(app, context)
    _add_health_routes(app, context)
    keys = service.prepared.config.server.api_key
    if keys:
        app.add_middleware(Authentication, keys=keys)
    app.add_middleware(HttpMetrics, metrics=context.metrics)
    return app


def _json(value: dict[str, Any]) -> Response:
    return Response(encode(value), media_type="application/json")


def _documented(*bodies: type[BaseModel]) -> dict[str, Any]:
    """The body's schema for the generated API description; the routes read the body themselves."""
    schemas = [body.model_json_schema() for body in bodies]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _add_generation_routes(app: FastAPI, context: ServerContext) -> None:
    @app.post("/v1/completions", openapi_extra=_documented(CompletionBody))
    async def completions(request: Request) -> Response:
        return await create_completion(context, request, await read_body(request, CompletionBody, context.warned))

    @app.post("/v1/chat/completions", openapi_extra=_documented(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(context, request, await read_body(request, ChatBody, context.warned))


def _add_text_routes(app: FastAPI, context: ServerContext) -> None:
    @app.post("/tokenize", openapi_extra=_documented(TokenizeBody, TokenizeChatBody))
    async def tokenize_route(request: Request) -> Response:
        raw = await read_raw(request)
        kind: type[TokenizeBody | TokenizeChatBody] = TokenizeChatBody if has_field(raw, "messages") else TokenizeBody
        return _json(await tokenize(context, parse_body(raw, kind, request.url.path, context.warned)))

    @app.post("/detokenize", openapi_extra=_documented(DetokenizeBody))
    async def detokenize_route(request: Request) -> Response:
        return _json(await detokenize(context, await read_body(request, DetokenizeBody, context.warned)))


def _add_model_routes(app: FastAPI, context: ServerContext) -> None:
    @app.get("/v1/models")
    async def list_models() -> Response:
        return _json(models.list_models(context))

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        return _json(models.one_model(context, name))


def _add_health_routes(app: FastAPI, context: ServerContext) -> None:
    @app.get("/health")
    async def health_route() -> Response:
        return _json(health.health(context))

    @app.get("/ping", operation_id="ping")
    @app.post("/ping", operation_id="ping_post")
    async def ping() -> Response:
        return _json(health.health(context))

    @app.get("/version")
    async def version() -> Response:
        return _json(health.version())

    @app.get("/load")
    async def load() -> Response:
        return _json(health.load(context))

    @app.get("/server_info")
    async def server_info() -> Response:
        return _json(health.server_info(context))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(context.metrics.render(), media_type=CONTENT_TYPE)
