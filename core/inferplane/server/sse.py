"""Server-sent events: framing, the end of a stream, errors inside it, and clients that leave. Knows no endpoint."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from inferplane.errors import TookTooLong
from inferplane.server.errors import CLIENT_CLOSED, ApiError, to_api_error
from inferplane.server.identity import request_id
from inferplane.server.responses import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Mapping
    from typing import Any

    from msgspec import UnsetType
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from inferplane.server.claim import Claim
    from inferplane.server.responses import RequestMetrics

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"
DIRECT_SEND = "inferplane.direct_send"
"""In the ASGI scope, where nobody on the way wants to see the pieces of an answer: who takes them in the end."""
encode = msgspec.json.Encoder().encode


def event(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


class ChunkFrame:
    """The parts of a stream's chunks that never change, encoded once."""

    def __init__(
        self,
        response_id: str,
        kind: str,
        created: int,
        model: str,
        include_usage: bool,
        around_text: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """around_text: the parts of a choice, behind its index, in which a text stands that goes on."""
        fixed = encode({"id": response_id, "object": kind, "created": created, "model": model})
        self._open = b"data: " + fixed[:-1]
        self._head = self._open + b',"choices":[{"index":'
        self._tail = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._before, after = around_text
        self._after = after + self._tail
        self._heads: dict[int, bytes] = {}
        """By index, all that stands before the text."""

    def piece(self, index: int, text: str) -> bytes:
        """The chunk of a choice that has nothing to tell but its next piece of text."""
        head = self._heads.get(index)
        if head is None:
            head = self._heads[index] = self._head + b"%d" % index + self._before
        return head + encode(text) + self._after

    def chunk(self, choice: bytes, usage: Usage | None = None, extra: Mapping[str, Any] | None = None) -> bytes:
        """choice: a choice's object behind `{"index":`, without its closing brace; extra: fields beside choices."""
        if usage is None and extra is None:
            return self._head + choice + self._tail
        tail = self._tail[:-3] if usage is None else b'}],"usage":' + encode(usage)
        if extra is not None:
            tail += b"," + encode(extra)[1:-1]
        return self._head + choice + tail + b"}\n\n"

    def usage(self, usage: Usage, metrics: RequestMetrics | UnsetType | None = UNSET) -> bytes:
        """The last chunk: usage and no choices."""
        tail = b"" if metrics is UNSET else b',"metrics":' + encode(metrics)
        return self._open + b',"choices":[],"usage":' + encode(usage) + tail + b"}\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`, or None when the client leaves first; then `work` is cancelled and has ended."""
    job = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({job, watch}, return_when=asyncio.FIRST_COMPLETED)
        return job.result() if job.done() else None
    finally:
        for task in (job, watch):
            task.cancel()
        await asyncio.gather(job, watch, return_exceptions=True)


async def attended(request: Request, claim: Claim, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of what comes before an answer begins, as long as the client is there and has time.

    Raises what `work` raises, TookTooLong, or ApiError 499 when the client left.
    """
    try:
        async with asyncio.timeout(claim.left()):
            result = await until_disconnect(request.receive, work)
    except TimeoutError:
        raise TookTooLong(f"the request is not done after the {claim.request_timeout:g} s that it may take") from None
    if result is None:
        raise ApiError(CLIENT_CLOSED, "the client left", code="client_closed")
    return result


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come, one or several in a piece. The status goes out with the first one, so a failure before
    it has its own status; a failure after it is an error event, and the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], error_names: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._error_names = error_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._pump(scope, receive, send))

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        # The start of the answer takes the whole way; that a piece passes every layer again would cost as much as
        # making it.
        send_piece: Send = scope.get(DIRECT_SEND, send)
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send_piece({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            answer = to_api_error(error, self._error_names, request_id=request_id(scope))
            if not started:
                await answer.response()(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": event(answer.encoded()), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
