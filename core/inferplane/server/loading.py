"""Answers HTTP from the first moment of a start until the application takes over: 503, and how far the start is.

A few lines of HTTP/1.1 on a thread of their own, so that they neither wait for the imports of the real server nor slow
them down. Knows no route but the probes, /startup and the page, which shows its reader how far the start is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.server.page.static import PAGE_PATH, page_headers, read_page

if TYPE_CHECKING:
    import socket
    import ssl

RETRY_SECONDS = 2
MAX_HEAD_BYTES = 64 * 2**10
CLIENT_SECONDS = 5.0
"""For one client to send its head and to take the answer."""
BACKLOG = 2048
ACCEPT_AGAIN_SECONDS = 0.25
"""After a connection could not be accepted for want of descriptors."""


class StartupStatus:
    """How far a start is; written by whoever starts, read by the responder's thread."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._phase, self._share = "model", 0.0

    def enter(self, phase: str, share: float = 0.0) -> None:
        """A phase has begun, or has come so far (0 to 1)."""
        self._phase, self._share = phase, share

    def describe(self) -> dict[str, Any]:
        """For /startup, with the fields that it has once the server is ready."""
        return {
            "state": "starting",
            "phase": self._phase,
            "share": round(self._share, 3),
            "seconds": round(time.monotonic() - self._since, 3),
            "front_end": [],
            "engine": [],
        }


class LoadingResponder:
    """Listens from its making until `stop`. The socket goes on listening: who connects meanwhile is not refused."""

    def __init__(
        self, listener: socket.socket, status: StartupStatus, tls: ssl.SSLContext | None = None, *, page: bool = False
    ) -> None:
        self._status = status
        self._page = page
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._clients: set[asyncio.Task[None]] = set()
        listener.listen(BACKLOG)
        self._socket = listener.dup()
        self._socket.setblocking(False)
        self._accepting, self._accepts_no_more = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="loading", daemon=True).start()
        self._accepting.wait(CLIENT_SECONDS)

    def stop(self) -> None:
        """Accept no more. Whoever was accepted is still answered, on the thread, which ends with the last of them."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._accepts_no_more.wait(CLIENT_SECONDS)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        with contextlib.closing(self._socket):
            self._listen()
            self._accepting.set()
            await self._stopping.wait()
            self._loop.remove_reader(self._socket)
        self._accepts_no_more.set()
        if self._clients:
            await asyncio.wait(self._clients)

    def _listen(self) -> None:
        if not self._stopping.is_set():
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Make a task of a connection at once. (asyncio's own server, when it is closed, forgets those in between.)"""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has gone again
        except OSError:
            # No descriptor is free. The connection stays where it is, and asking again at once would keep a core busy.
            self._loop.remove_reader(self._socket)
            self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._listen)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._client(connection))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _client(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader(MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(CLIENT_SECONDS):
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
                    if writer.can_write_eof():
                        writer.write_eof()
                    # Closing with unread bytes (a body) would take the answer away before it was read.
                    while await reader.read(MAX_HEAD_BYTES):
                        pass
                finally:
                    writer.close()
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        described = self._status.describe()
        if self._page and path == PAGE_PATH.encode() and method in (b"GET", b"HEAD"):
            html = read_page()
            body = html.encode()
            head = _head(b"200 OK", b"text/html; charset=utf-8", len(body), page_headers(html))
            return head + (body if method == b"GET" else b"")
        if path.endswith(b"/startup") and method == b"GET":
            return _response(b"200 OK", described)
        problem = {
            "message": f"the server is starting: {described['phase']}, {described['seconds']:.0f} s so far",
            "type": "server_error",
            "param": None,
            "code": "engine_starting",
        }
        return _response(
            b"503 Service Unavailable", {"error": problem, "startup": described}, with_body=method != b"HEAD"
        )


def _response(status: bytes, value: dict[str, Any], *, with_body: bool = True) -> bytes:
    body = msgspec.json.encode(value)
    headers = {} if status.startswith(b"200") else {"retry-after": str(RETRY_SECONDS)}
    return _head(status, b"application/json", len(body), headers) + (body if with_body else b"")


def _head(status: bytes, kind: bytes, length: int, headers: dict[str, str]) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in headers.items())
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n" % (status, kind, length)
    return head + lines + b"connection: close\r\n\r\n"
