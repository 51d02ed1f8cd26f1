"""Runs the application on a listening socket until a signal comes; knows no routes."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from fastapi import FastAPI

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


async def run_app(app: FastAPI, listener: socket.socket, shutdown_timeout: float, log_level: str) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish for `shutdown_timeout` seconds."""
    settings = uvicorn.Config(
        app,
        log_level="warning" if log_level == "info" else log_level,
        access_log=log_level == "debug",
        timeout_graceful_shutdown=int(shutdown_timeout),
        lifespan="on",
        backlog=BACKLOG,
    )
    await _Server(settings).serve(sockets=[listener])
