"""The application: routes, middleware and error answers put together. Knows no shape and no rule itself."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from inferplane import __version__
from inferplane.errors import InferplaneError
from inferplane.server.authentication import Authentication, open_paths
from inferplane.server.context import ServerContext
from inferplane.server.description import DescribedApp, Description
from inferplane.server.errors import ApiError, handle_error, handle_http_exception
from inferplane.server.middleware import Edge, load_middleware
from inferplane.server.origins import OwnPages
from inferplane.server.page.route import add_page
from inferplane.server.routes import add_routes
from inferplane.server.settings import load_keys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastapi import FastAPI

    from inferplane.config import ServerConfig
    from inferplane.launch_types import Service

_DOCS = {"openapi_url": "/openapi.json", "docs_url": "/docs", "redoc_url": "/redoc"}


def create_app(service: Service) -> FastAPI:
    """The application for a prepared model and its engine. When it shuts down, it closes the engine's client.

    Raises InvalidValue for a setting that cannot be used.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        yield
        await service.client.close()
        if context.tracing is not None:
            await asyncio.to_thread(context.tracing.close)

    context = ServerContext(service)
    server = context.server
    description = Description()
    app = DescribedApp(
        description,
        open_paths(server),
        title="Inferplane",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        **(dict.fromkeys(_DOCS) if server.disable_fastapi_docs else _DOCS),
    )
    app.state.context = context
    for kind in (ApiError, InferplaneError):
        app.add_exception_handler(kind, handle_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    add_routes(app, context, description)
    if not server.disable_page:
        add_page(app, description)
    context.metrics.handlers(path for route in app.routes if (path := getattr(route, "path", None)) is not None)
    _add_middleware(app, context, server)
    return app


def _add_middleware(app: FastAPI, context: ServerContext, server: ServerConfig) -> None:
    """From the inside out: the user's own see only requests with a key, and pages may read every answer."""
    for path in reversed(server.middleware):
        app.add_middleware(load_middleware(path))
    if keys := load_keys(server):
        app.add_middleware(Authentication, keys=keys, open_paths=open_paths(server))
    else:
        app.add_middleware(OwnPages, server=server)
    app.add_middleware(Edge, metrics=context.metrics, server=server)
    if server.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.allowed_origins,
            allow_methods=server.allowed_methods or ("GET", "POST"),
            allow_headers=server.allowed_headers or ("*",),
            allow_credentials=server.allow_credentials,
            expose_headers=("X-Request-Id", "Retry-After"),
        )
