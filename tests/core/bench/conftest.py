"""A server that streams what the test says, at the pace that it says, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DONE = "data: [DONE]\n\n"


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


class FakeServer:
    """Answers every POST with `first_delay`, then one chunk a token with `delay` between; the usage comes last."""

    def __init__(self) -> None:
        self.first_delay = self.delay = 0.0
        self.status = 200
        self.usage = True
        self.cut_after: int | None = None
        """Close the connection after so many tokens."""
        self.raw: str | None = None
        """Instead of the stream."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.connections = self.running = self.most_running = 0
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.stop: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self.stop = lambda: loop.call_soon_threadsafe(ended.set)
        started.set()
        await ended.wait()
        server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.exchanges(reader, writer)
        finally:
            self.tasks.discard(task)
            writer.close()

    async def exchanges(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                try:
                    await self.answer(head, body, writer)
                finally:
                    self.running -= 1
                if writer.is_closing():
                    return

    async def answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith("get"):
            self.whole(writer, 200, {"data": [{"id": "listed"}]})
            return
        request = json.loads(body)
        self.headers.append(head)
        self.bodies.append(request)
        if self.status != 200:
            self.whole(writer, self.status, {"error": {"message": "because"}})
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if self.raw is not None:
            self.chunk(writer, self.raw)
        else:
            await self.stream(request, "/chat/" in head.partition("\r\n")[0], writer)
            if writer.is_closing():
                return
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def stream(self, request: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        if chat:
            self.chunk(writer, event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
        await asyncio.sleep(self.first_delay)
        for number in range(request["max_tokens"]):
            if number == self.cut_after:
                writer.transport.abort()
                return
            if number and self.delay:
                await asyncio.sleep(self.delay)
            choice = {"delta": {"content": "é"}} if chat else {"text": "é"}
            self.chunk(writer, event(choices=[{"index": 0, **choice}]))
            await writer.drain()
        if self.usage:
            prompt = request.get("prompt") or request["messages"][0]["content"]
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": request["max_tokens"]}
            self.chunk(writer, event(choices=[], usage=usage))
        self.chunk(writer, DONE)

    def whole(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data))

    def chunk(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = text.encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server, started = FakeServer(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(started)))
    thread.start()
    assert started.wait(10)
    yield server
    server.stop()
    thread.join(10)
