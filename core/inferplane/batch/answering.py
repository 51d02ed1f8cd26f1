"""Sends the lines of a batch through an application in this process, many at once, and writes the answers in order."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import httpx
import msgspec

from inferplane.batch.records import BadLine, answer_line, error_line, parse_line

if TYPE_CHECKING:
    from collections.abc import Iterator

AHEAD = 4
"""Lines read ahead for each one that may run, so that a slow one at the front stops nothing."""


class Counts(NamedTuple):
    """How a batch went."""

    total: int
    failed: int


class Answer(NamedTuple):
    """One line of the output."""

    line: bytes
    failed: bool


async def answer_all(
    app: Any,
    lines: Iterator[bytes],
    output: BinaryIO,
    *,
    at_once: int,
    check: Callable[[], None] = lambda: None,
    step: Callable[[], None] = lambda: None,
) -> Counts:
    """Answer every line; at most `at_once` run. `check` is called after each answer and may raise to end the batch."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    gate = asyncio.Semaphore(at_once)
    waiting: deque[asyncio.Task[Answer]] = deque()
    total = failed = 0

    async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as http:

        async def write_first() -> None:
            nonlocal total, failed
            answer = await waiting[0]
            waiting.popleft()
            # Before the line is written: the end of the engine is no answer to a request.
            check()
            output.write(answer.line)
            total, failed = total + 1, failed + answer.failed
            step()

        try:
            for line in lines:
                waiting.append(asyncio.ensure_future(_answer(http, line, gate)))
                if len(waiting) >= AHEAD * at_once:
                    await write_first()
            while waiting:
                await write_first()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    return Counts(total, failed)


async def _answer(http: httpx.AsyncClient, line: bytes, gate: asyncio.Semaphore) -> Answer:
    try:
        request = parse_line(line)
    except BadLine as error:
        return Answer(error_line(error), failed=True)
    request_id = secrets.token_hex(16)  # what the log says of it, too
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    async with gate:
        answer = await http.post(request.url, content=msgspec.json.encode(request.body), headers=headers)
    line = answer_line(request.custom_id, answer.status_code, request_id, answer.content or b"{}")
    return Answer(line, failed=answer.status_code != 200)
