"""The composition root: the only module that sees all the parts. Makes the plan, starts engines, joins the ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferplane.banner import ready_text
from inferplane.launch_types import Prepared, Service
from inferplane.log import get_logger
from inferplane.timeline import Timeline

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from inferplane.client.process_client import ProcessClient
    from inferplane.config import Config
    from inferplane.plan.types import Plan

log = get_logger(__name__)


class Planned(NamedTuple):
    """A decided plan, before a tokenizer is loaded or an engine started."""

    config: Config
    plan: Plan
    provenance: str
    timeline: list[tuple[str, float]]


def make_plan(config: Config, *, weights: bool = True) -> Planned:
    """Find the model and the plugins (at the same time), read the model's card, and resolve.

    weights=False reads only what selection needs where the source allows. Raises InferplaneError.
    """
    from inferplane.checkpoint.card import read_card
    from inferplane.checkpoint.model_spec import model_spec
    from inferplane.host.facts import collect_host
    from inferplane.plan.hooks import tell_selection, validate
    from inferplane.plan.resolve import resolve
    from inferplane.plugins.discovery import discover
    from inferplane.sources.resolve import resolve_source

    timeline = Timeline()
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(lambda: discover(collect_host(), config.platform))
        try:
            files = resolve_source(config.model, weights=weights)
        except BaseException:
            searching.result().close()
            raise
        timeline.mark("source")
        discovery = searching.result()
        timeline.mark("probe")
    try:
        validate(config, discovery)
        card, format_id = read_card(files.path, discovery.formats, config.model, weights=weights)
        if files.generation_config:
            merged = {**files.generation_config, **card.generation_config}
            card = msgspec.structs.replace(card, generation_config=merged)
        timeline.mark("card")
        # A type is a plugin's or the core's own; `resolve` refuses one that is both.
        model = discovery.describe(str(card.config.get("model_type", "")), card.config) or model_spec(card.config)
        plan = tell_selection(resolve(config, model, card, str(files.path), format_id, discovery), discovery)
        timeline.mark("plan")
    finally:
        discovery.close()
    return Planned(config, plan, files.provenance, timeline.phases)


def prepare_front_end(planned: Planned) -> Prepared:
    """Load what the front end needs: tokenizer, chat template, sampling defaults. Raises InferplaneError."""
    from inferplane.text.chat_template import ChatTemplate
    from inferplane.text.generation_defaults import SamplingDefaults
    from inferplane.text.tokenizer import Tokenizer

    config, card = planned.config.model, planned.plan.card
    timeline = Timeline()
    tokenizer = Tokenizer.from_card(card) if card.tokenizer_json is not None else None
    template = ChatTemplate.from_card(card, config.chat_template, config.chat_template_content_format)
    defaults = SamplingDefaults.from_card(card, config.generation_config, config.override_generation_config)
    timeline.mark("tokenizer")
    return Prepared(
        config=planned.config,
        plan=planned.plan,
        tokenizer=tokenizer,
        chat_template=template,
        defaults=defaults,
        served_names=config.served_model_name or (config.model,),
        timeline=planned.timeline + timeline.phases,
    )


def prepare(config: Config) -> Prepared:
    """Everything that is known before an engine starts. Raises InferplaneError."""
    return prepare_front_end(make_plan(config))


def serve(config: Config) -> int:
    """Serve over HTTP until SIGINT or SIGTERM; the exit status. Raises InferplaneError when it cannot start."""
    from inferplane.server.listen import bind, release
    from inferplane.server.settings import check_settings

    started = time.perf_counter()
    check_settings(config.server)
    with contextlib.closing(bind(config.server)) as listener, contextlib.ExitStack() as stack:
        stack.callback(release, config.server)
        planned = make_plan(config)
        _announce(planned)
        return asyncio.run(_serve(planned, listener, started))


async def _serve(planned: Planned, listener: socket.socket, started: float) -> int:
    from inferplane.server.run import BACKLOG, run_app

    server_config = planned.config.server
    client = start_client(planned)
    try:
        # The engine loads its weights meanwhile.
        service, app = await asyncio.to_thread(_front_end, planned, client)
        await client.ready()
        # A client that reads the ready line may connect at once: the system queues it until the server accepts.
        listener.listen(BACKLOG)
        _print_ready(service, client, listener, time.perf_counter() - started)
        await run_app(app, listener, server_config)
    finally:
        await client.close()
    return 0


def start_client(planned: Planned) -> ProcessClient:
    """Start the engine's process; `ready()` of the result waits for it. The caller closes it."""
    from inferplane.client.process_client import ProcessClient

    server = planned.config.server
    client = ProcessClient(
        planned.plan,
        max_queued=planned.config.scheduler.max_num_queued_reqs,
        hang_seconds=server.hang_timeout,
        log_level=server.log_level,
    )
    client.launch()
    return client


def _front_end(planned: Planned, client: ProcessClient) -> tuple[Service, FastAPI]:
    from inferplane.server.app import create_app

    service = Service(prepare_front_end(planned), client)
    return service, create_app(service)


def _announce(planned: Planned) -> None:
    from inferplane.plan.record import reference_lines
    from inferplane.plan.render import startup_line

    log.info("model %s", planned.provenance)
    for warning in planned.plan.warnings:
        log.warning("%s", warning)
    log.info("%s", startup_line(planned.plan))
    for line in reference_lines(planned.plan):
        log.info("%s", line)


def _print_ready(service: Service, client: ProcessClient, listener: socket.socket, seconds: float) -> None:
    from inferplane.server.listen import address

    server = service.prepared.config.server
    url = address(server, listener)
    name = service.prepared.served_names[0]
    capacity = client.capacity
    log.info("%s", service.prepared.defaults.describe())
    phases = [(f"engine {phase}", spent) for phase, spent in client.engine_timeline]
    shown = ", ".join(f"{phase} {spent:.2f}" for phase, spent in service.prepared.timeline + phases)
    log.info("start-up in seconds: %s; ready after %.2f", shown, seconds)
    log.info(
        "context %d tokens; cache %d tokens (%.1f requests of full length)",
        capacity.max_model_len,
        capacity.kv_tokens,
        capacity.kv_tokens / capacity.max_model_len,
    )
    has_key = bool(server.api_key or server.api_key_file)
    print(ready_text(url, name, has_chat=service.prepared.chat_template is not None, has_key=has_key), flush=True)
