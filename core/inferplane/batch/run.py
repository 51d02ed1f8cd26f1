"""A whole batch: the engine, the application and the files put together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from inferplane.batch.answering import Counts, answer_all
from inferplane.batch.files import open_lines, open_output
from inferplane.errors import EngineDead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fastapi import FastAPI

    from inferplane.config import Config
    from inferplane.launch import Planned
    from inferplane.launch_types import Service

_NOT_FOR_A_BATCH = {
    "api_key": (),
    "api_key_file": None,
    "middleware": (),
    "request_timeout": None,
    "queue_timeout": None,
}


def run_batch(config: Config, source: str, target: str, step: Callable[[], None] = lambda: None) -> Counts:
    """Answer every request of a file. Raises InferplaneError where the engine cannot start or dies."""
    from inferplane.launch import make_plan

    # Nobody knocks: keys and deadlines are for clients.
    server = config.server.model_copy(update=_NOT_FOR_A_BATCH)
    with open_lines(source) as lines, open_output(target) as output:
        planned = make_plan(config.model_copy(update={"server": server}))

        async def run() -> Counts:
            async with _open_app(planned) as (service, app):

                def check() -> None:
                    if service.client.state in ("dead", "hung"):
                        raise service.client.failure or EngineDead("the engine is gone", code="engine.dead")

                # Enough that the engine always has a full batch waiting, and never more than its queue holds.
                at_once = min(2 * service.client.capacity.max_num_seqs, config.scheduler.max_num_queued_reqs)
                return await answer_all(app, lines, output, at_once=at_once, check=check, step=step)

        return asyncio.run(run())


@contextlib.asynccontextmanager
async def _open_app(planned: Planned) -> AsyncIterator[tuple[Service, FastAPI]]:
    from inferplane.launch import make_client, prepare_front_end
    from inferplane.launch_types import Service
    from inferplane.server.app import create_app

    client = make_client(planned)
    try:
        client.launch()
        prepared = await asyncio.to_thread(prepare_front_end, planned)
        await client.ready()
        service = Service(prepared, client)
        yield service, create_app(service)
    finally:
        await client.close()
