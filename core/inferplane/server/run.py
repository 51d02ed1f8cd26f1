"""Runs the application on a listening socket until a signal comes; knows no routes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import uvicorn

from inferplane.server.connection import ConnectionLimits, LimitedConfig
from inferplane.server.tls import refresh_forever, tls_context

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator

    from fastapi import FastAPI

    from inferplane.config import ServerConfig

BACKLOG = 2048


class _Server(uvicorn.Server):
    """uvicorn raises the signal again once it has drained, which turns a good end into a death by signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on SIGINT and SIGTERM; a second one cuts the drain short."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def run_app(app: FastAPI, listener: socket.socket, server: ServerConfig) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish for `shutdown_timeout` seconds."""
    settings = LimitedConfig(
        app,
        ConnectionLimits.of(server),
        log_level="warning" if server.log_level == "info" else server.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(server.shutdown_timeout),
        timeout_keep_alive=server.keep_alive_timeout,
        root_path=server.root_path,
        lifespan="on",
        backlog=BACKLOG,
    )
    async with _transport_security(settings, server):
        await _Server(settings).serve(sockets=[listener])


@contextlib.asynccontextmanager
async def _transport_security(settings: LimitedConfig, server: ServerConfig) -> AsyncIterator[None]:
    """TLS while the server runs, where the user has a certificate."""
    settings.load()
    context = tls_context(server)
    settings.ssl = context
    refresh = None
    if context is not None and server.enable_ssl_refresh:
        refresh = asyncio.create_task(refresh_forever(server, context))
    try:
        yield
    finally:
        if refresh is not None:
            refresh.cancel()
            await asyncio.gather(refresh, return_exceptions=True)
