"""Runs the application on a listening socket until a signal comes; knows no routes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

import uvicorn

from inferplane.log import get_logger
from inferplane.server.connection import ConnectionLimits, LimitedConfig
from inferplane.server.tls import refresh_forever, tls_context

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import FrameType

    from fastapi import FastAPI

    from inferplane.client.interface import EngineClient
    from inferplane.config import ServerConfig

BACKLOG = 2048
ACCEPTED_AT_ONCE = 8
"""Of several processes none should take all connections of a burst."""
POLL_SECONDS = 0.1


log = get_logger(__name__)

FLUSH_SECONDS = 5
"""For answers that were cut short to reach their clients."""


class _Server(uvicorn.Server):
    """uvicorn raises the signal again once it has drained, which turns a good end into a death by signal."""

    num_signals = 0
    last_signal = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain, the second one ends at once."""
        self.num_signals += 1
        self.last_signal = sig
        self.should_exit = True
        self.force_exit = self.num_signals > 1

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The event loop takes its number of connections to accept in one go for the length of the system's queue."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: somebody catches them from the start of the process on, and tells."""
        yield


async def run_app(
    app: FastAPI,
    listener: socket.socket,
    server: ServerConfig,
    client: EngineClient,
    *,
    stopped_by: Callable[[Callable[[int], None]], None],
    listens_alone: bool,
) -> int:
    """Serve until it is stopped, then let running requests finish for `shutdown_timeout` seconds; what is left then
    ends with finish_reason "abort". Returns the exit status: 0, or 128 + the signal's number when a second one came.

    stopped_by(stop): gets what is to be called with the number of each signal. listens_alone: no other process answers
    on the listener.
    """
    settings = LimitedConfig(
        app,
        ConnectionLimits.of(server),
        log_level="warning" if server.log_level == "info" else server.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(server.shutdown_timeout) + FLUSH_SECONDS,
        timeout_keep_alive=server.keep_alive_timeout,
        root_path=server.root_path,
        lifespan="on",
        backlog=BACKLOG if listens_alone else ACCEPTED_AT_ONCE,
    )
    serving = _Server(settings)
    stopped_by(lambda number: serving.handle_exit(number, None))
    watching = asyncio.create_task(_drain(serving, client, server.shutdown_timeout))
    try:
        async with _transport_security(settings, server):
            await serving.serve(sockets=[listener])
        if serving.force_exit:
            # Whoever is still there should learn that it was the server's doing.
            client.abort_open()
            await asyncio.sleep(POLL_SECONDS)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return 128 + serving.last_signal if serving.force_exit else 0


async def _drain(serving: _Server, client: EngineClient, seconds: float) -> None:
    """From the first signal on: wait for the limit or the second signal, and end what still runs."""
    while not serving.should_exit:
        await asyncio.sleep(POLL_SECONDS)
    log.info("shutting down: requests under way may take %g s more; a second signal ends them at once", seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not serving.force_exit:
        await asyncio.sleep(POLL_SECONDS)
    client.abort_open()


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
