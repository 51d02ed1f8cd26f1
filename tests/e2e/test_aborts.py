"""Clients that leave at every stage, over real sockets: nothing of them stays in the engine, the client or the loop.

TEST_ABORTS sets how many (150 by default; the full number is 1000).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

from inferplane.config import Config
from inferplane.launch import make_client, make_plan, prepare_front_end
from inferplane.launch_types import Service
from inferplane.server.app import create_app

if TYPE_CHECKING:
    from pathlib import Path

NUM_ABORTS = int(os.environ.get("TEST_ABORTS", "150"))
AT_ONCE = 24


async def leave(port: int, rng: random.Random) -> None:
    """Send a request, whole or in part, read as much as chance wants, and close the connection."""
    path, body = rng.choice(
        [
            ("/v1/completions", {"prompt": "x" * rng.choice([3, 900]), "n": rng.choice([1, 3])}),
            ("/v1/completions", {"prompt": ["a" * rng.randint(1, 200), "b"]}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "y" * rng.choice([3, 900])}]}),
            ("/tokenize", {"prompt": "z" * 2000}),
        ]
    )
    data = json.dumps({**body, "model": "scripted", "max_tokens": rng.choice([1, 200]), "ignore_eos": True,
                       "stream": rng.random() < 0.6}).encode()  # fmt: skip
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError):
        whole = head.encode() + data
        writer.write(whole[: rng.randint(1, len(whole))] if rng.random() < 0.1 else whole)
        await writer.drain()
        delay = rng.choice([0.0, 0.001, 0.01, 0.05, 0.2])
        if rng.random() < 0.5:
            await asyncio.sleep(delay)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(rng.choice([1, 400, 4000])), 0.2)
        if rng.random() < 0.5:
            writer.transport.abort()
    writer.close()


async def test_clients_that_leave_leave_nothing_behind(scripted_model: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"delay": 0.004}))
    config = Config.from_flat(
        {
            "model": str(scripted_model),
            "served_model_name": ("scripted",),
            "platform": "scripted",
            "platform_option": {"script": str(script), "pages": "600"},
            "max_num_seqs": 6,
            "max_num_batched_tokens": 64,
            "log_level": "error",
            "enable_prefix_caching": False,
        }
    )
    planned = await asyncio.to_thread(make_plan, config)
    client = make_client(planned)
    client.launch()
    try:
        prepared = await asyncio.to_thread(prepare_front_end, planned)
        await client.ready()
        app = create_app(Service(prepared, client))
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
            server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await _until(lambda: server.started)
            tasks_before = len(asyncio.all_tasks())
            await _storm(listener.getsockname()[1])
            await _until(lambda: client.num_open == 0 and app.state.context.num_running == 0)
            await _until(lambda: len(asyncio.all_tasks()) <= tasks_before)
            await _until(lambda: _is_idle(client))
            assert app.state.context.text.tokenizer.num_pending == 0
            assert app.state.context.text.templates.num_pending == 0
            admission = client._admission
            assert (admission.num_open, admission.num_waiting, admission.tokens_waiting) == (0, 0, 0)
            stats: dict[str, Any] = await client.control("stats")
            assert stats["kv_cache_usage"] == 0.0, "every page is back"
            assert stats["num_steps"] > 10
            server.should_exit = True
            await serving
    finally:
        await client.close()


async def _storm(port: int) -> None:
    rng = random.Random(20)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with slots:
            await leave(port, rng)

    await asyncio.gather(*(one() for _ in range(NUM_ABORTS)))


def _is_idle(client: Any) -> bool:
    return client.stats.num_requests_running == client.stats.num_requests_waiting == 0


async def _until(condition: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
