"""The composition root: the only module that sees all the parts. Makes the plan, starts engines, joins the ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferplane.banner import ready_text, socket_text
from inferplane.launch_types import FrontEnd, Prepared, Service
from inferplane.log import get_logger
from inferplane.server.stop_signals import StopSignals
from inferplane.timeline import Timeline

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from fastapi import FastAPI

    from inferplane.client.process_client import ProcessClient
    from inferplane.config import Config, ServerConfig
    from inferplane.plan.types import Plan
    from inferplane.server.loading import LoadingResponder, StartupStatus
    from inferplane.server.workers import Workers

log = get_logger(__name__)

DRAIN_MARGIN_SECONDS = 10.0
"""For API processes to end by themselves, beyond the time that their requests get."""


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
    from inferplane.errors import InferplaneError
    from inferplane.host.facts import collect_host
    from inferplane.plan.hooks import tell_selection, validate
    from inferplane.plan.missing import with_left_out
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
    except InferplaneError as error:
        told = with_left_out(error, discovery.left_out)
        if told is error:
            raise
        raise told from error
    finally:
        discovery.close()
    return Planned(config, plan, files.provenance, timeline.phases)


def prepare_front_end(planned: Planned, *, with_tokenizer: bool = True) -> Prepared:
    """Load what the front end needs: tokenizer, chat template, sampling defaults. Raises InferplaneError."""
    from inferplane.text.chat_template import ChatTemplate
    from inferplane.text.generation_defaults import SamplingDefaults
    from inferplane.text.tokenizer import Tokenizer

    config, card = planned.config.model, planned.plan.card
    timeline = Timeline()
    tokenizer = Tokenizer.from_card(card) if with_tokenizer and card.tokenizer_json is not None else None
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
    from inferplane.server.loading import LoadingResponder, StartupStatus
    from inferplane.server.settings import check_settings
    from inferplane.server.tls import tls_context

    started = time.perf_counter()
    check_settings(config.server)
    with contextlib.closing(bind(config.server)) as listener, contextlib.ExitStack() as stack:
        stack.callback(release, config.server)
        status = StartupStatus()
        responder = LoadingResponder(listener, status, tls_context(config.server), page=not config.server.disable_page)
        stack.callback(responder.stop)
        planned = make_plan(config)
        _announce(planned)
        return asyncio.run(_serve(planned, _Start(listener, status, responder, started)))


class _Start(NamedTuple):
    """What a start has made before there is an engine."""

    listener: socket.socket
    status: StartupStatus
    responder: LoadingResponder
    began: float


async def _serve(planned: Planned, start: _Start) -> int:
    if planned.config.server.api_server_count > 1:
        return await _serve_with_workers(planned, start)
    client = make_client(planned, on_phase=start.status.enter)
    signals = StopSignals()
    at_once = False
    try:
        with signals.caught():
            signals.tell(_cancelling())
            client.launch()
            # The engine loads its weights meanwhile.
            service, app = await asyncio.to_thread(_front_end, planned, client)
            await client.ready()
            signals.keep()
            # Who connects between the two is kept waiting by the system for a moment, and not refused.
            start.responder.stop()
            from inferplane.server.run import run_app

            _print_ready(service, client, start.listener, time.perf_counter() - start.began)
            async with _stats_logged(planned.config.server, client):
                status = await run_app(
                    app, start.listener, planned.config.server, client, stopped_by=signals.tell, listens_alone=True
                )
        at_once = status != 0
        return status
    except asyncio.CancelledError:
        if not signals.numbers:
            raise
        at_once = True
        log.info("stopped while starting")
        return 128 + signals.numbers[0]
    finally:
        await client.close(at_once=at_once)


async def _serve_with_workers(planned: Planned, start: _Start) -> int:
    """This process owns the engine and the listener; others answer HTTP."""
    from inferplane.client.following_client import news_of
    from inferplane.server.workers import Workers

    server = planned.config.server
    said = planned.config.model_dump_json(exclude_unset=True).encode()
    client = make_client(planned, on_phase=start.status.enter, on_change=lambda: workers.tell(news_of(client)))
    workers = Workers(
        FrontEnd(server.api_server_count, planned.plan, said, planned.provenance, planned.timeline),
        start.listener,
        news=lambda: news_of(client),
        on_gone=client.release,
    )
    signals = StopSignals()
    try:
        with signals.caught():
            signals.tell(_cancelling())
            client.launch()
            workers.start()
            prepared = await asyncio.to_thread(prepare_front_end, planned, with_tokenizer=False)
            await asyncio.gather(client.ready(), workers.ready())
            signals.keep()
            start.responder.stop()
            workers.serve()
            signals.tell(_draining(workers, server.shutdown_timeout))
            _print_ready(Service(prepared, client), client, start.listener, time.perf_counter() - start.began)
            async with _stats_logged(server, client):
                num_signals = await workers.run()
        return 0 if num_signals == 1 else 128 + signals.numbers[-1]
    except asyncio.CancelledError:
        if not signals.numbers:
            raise
        log.info("stopped while starting")
        return 128 + signals.numbers[0]
    finally:
        await workers.close()
        await client.close(at_once=len(signals.numbers) != 1)


def _draining(workers: Workers, seconds: float) -> Callable[[int], None]:
    """The first signal lets the processes finish their requests, the second one ends them."""
    told: list[int] = []

    def stop(number: int) -> None:
        told.append(number)
        if len(told) == 1:
            log.info("shutting down: requests under way may take %g s more; a second signal ends them at once", seconds)
        workers.drain(seconds + DRAIN_MARGIN_SECONDS)

    return stop


def make_client(
    planned: Planned,
    *,
    on_phase: Callable[[str, float], None] | None = None,
    on_change: Callable[[], None] | None = None,
) -> ProcessClient:
    """The client of an engine that is not started yet: the caller launches and closes it."""
    from inferplane.client.process_client import ProcessClient

    server, scheduler = planned.config.server, planned.config.scheduler
    return ProcessClient(
        planned.plan,
        max_queued=scheduler.max_num_queued_reqs,
        max_queued_tokens=scheduler.max_num_queued_tokens,
        hang_seconds=server.hang_timeout,
        log_level=server.log_level,
        restarts=server.engine_restarts,
        on_phase=on_phase,
        on_change=on_change,
    )


@contextlib.asynccontextmanager
async def _stats_logged(server: ServerConfig, client: ProcessClient) -> AsyncIterator[None]:
    """Inside, a line about load is logged every few seconds."""
    from inferplane.client.stats_log import StatsLog

    job = None if server.disable_log_stats else StatsLog(lambda: client.stats).run(server.log_stats_interval)
    task = None if job is None else asyncio.create_task(job)
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _cancelling() -> Callable[[int], None]:
    """A signal cancels the present task, which finds its number among the signals."""
    task = asyncio.current_task()
    assert task is not None

    def stop(number: int) -> None:
        task.cancel()

    return stop


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
    name = service.prepared.served_names[0]
    capacity, plan = client.capacity, service.prepared.plan
    if plan.pooler is None:
        log.info("%s", service.prepared.defaults.describe())
    phases = [(f"engine {phase}", spent) for phase, spent in client.engine_timeline]
    shown = ", ".join(f"{phase} {spent:.2f}" for phase, spent in service.prepared.timeline + phases)
    log.info("start-up in seconds: %s; ready after %.2f", shown, seconds)
    if plan.geometry.groups:
        log.info(
            "context %d tokens; cache %d tokens (%.1f requests of full length)",
            capacity.max_model_len,
            capacity.kv_tokens,
            capacity.kv_tokens / capacity.max_model_len,
        )
    else:
        log.info("context %d tokens; no cache", capacity.max_model_len)
    if server.uds is not None:
        print(socket_text(server.uds, name), flush=True)
        return
    has_key, has_chat = bool(server.api_key or server.api_key_file), service.prepared.chat_template is not None
    url, embeds = address(server, listener), plan.pooler is not None
    print(ready_text(url, name, has_chat=has_chat, has_key=has_key, embeds=embeds), flush=True)
