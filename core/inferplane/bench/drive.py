"""Drives a server: one streamed request a sample, at its time, and what came of each. Knows no statistics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from inferplane.bench.connection import ExchangeFailed, HttpPool, Target
from inferplane.bench.statistics import Outcome
from inferplane.bench.stream import StreamFailed, StreamReader
from inferplane.bench.traffic import arrival_times, run_all
from inferplane.errors import InferplaneError, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from inferplane.bench.datasets import Sample

BACKENDS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
"""Backend to the path it posts to; vllm is another name of openai."""


class Load(NamedTuple):
    """What is sent, and how fast."""

    model: str
    backend: str = "openai"
    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int | None = None
    seed: int = 0
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = {}
    keep_text: bool = False


def endpoint_url(base_url: str, path: str) -> str:
    """The base may end in /v1, as clients of OpenAI give it, or not, as vLLM's tool takes it."""
    base = base_url.rstrip("/")
    return base.removesuffix("/v1") + path if path.startswith("/v1/") else base + path


def request_body(load: Load, sample: Sample) -> bytes:
    """The JSON body of one sample."""
    body: dict[str, Any] = {
        "model": load.model,
        "max_tokens": sample.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.backend == "openai-chat":
        body["messages"] = [{"role": "user", "content": sample.prompt}]
    else:
        body["prompt"] = sample.prompt
    if load.ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode(body | dict(load.extra_body))


async def drive(
    pool: HttpPool, load: Load, samples: Sequence[Sample], on_done: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Send every sample once; nothing is sent again. The outcomes stand in the order of the samples."""
    # Encoded before the clock starts, so that the driver's own work is no part of what is measured.
    bodies = [(request_body(load, sample), sample) for sample in samples]
    times = arrival_times(len(samples), load.request_rate, load.burstiness, load.seed)

    async def send(item: tuple[bytes, Sample]) -> Outcome:
        outcome = await send_one(pool, *item, keep_text=load.keep_text)
        on_done(outcome)
        return outcome

    return await run_all(bodies, times, load.max_concurrency, send)


async def send_one(pool: HttpPool, body: bytes, sample: Sample, *, keep_text: bool = False) -> Outcome:
    """One request; a failure is an outcome."""
    reader = StreamReader(keep_text=keep_text)
    before = pool.now()
    try:
        reply = await pool.post(body, reader)
    except ExchangeFailed as error:
        kind, message = _stream_failure(error)
        return Outcome(before, pool.now(), failure=kind, message=message)
    if reply.status != 200:
        return Outcome(
            reply.started, reply.ended, failure=f"http {reply.status}", message=_error_message(reply.refusal)
        )
    if not reader.complete:
        text = "the answer ended without [DONE]"
        return Outcome(reply.started, reply.ended, failure="incomplete", message=text)
    counted = reader.output_tokens is not None
    return Outcome(
        started=reply.started,
        ended=reply.ended,
        chunk_times=reader.times,
        prompt_tokens=sample.prompt_tokens if reader.prompt_tokens is None else reader.prompt_tokens,
        output_tokens=len(reader.times) if reader.output_tokens is None else reader.output_tokens,
        cached_tokens=reader.cached_tokens,
        counted=counted,
        text="".join(reader.pieces or ()),
    )


async def probe(pool: HttpPool, load: Load, wait_seconds: float) -> None:
    """One short request, again and again until the server answers or the time is over.

    Raises InferplaneError with what was wrong with the last.
    """
    from inferplane.bench.datasets import Sample

    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        sample = Sample("Hello", 1, 2)
        outcome = await send_one(pool, request_body(load, sample), sample)
        if outcome.ok:
            return
        if loop.time() >= deadline or outcome.failure in _FINAL:
            raise InferplaneError(
                f"the first request failed ({outcome.failure}): {outcome.message}",
                code="bench.not_ready",
                remedy=_REMEDIES.get(outcome.failure, "try the same with curl, or look into the server's log"),
            )
        await asyncio.sleep(1.0)


_FINAL = ("http 400", "http 401", "http 403", "http 404", "http 405", "http 422")
"""Waiting changes none of them."""
_REMEDIES = {
    "connect": "start the server, give its address with --base-url, or wait with --ready-check-timeout-sec",
    "http 401": "give a key with --api-key or OPENAI_API_KEY",
    "http 404": "check --model and --endpoint",
}


def make_pool(url: str, api_key: str | None, headers: Mapping[str, str], **options: Any) -> HttpPool:
    """The pool for one address. Raises InvalidValue."""
    verify = options.pop("verify", True)
    fields = dict(headers)
    if api_key:
        fields["Authorization"] = f"Bearer {api_key}"
    return HttpPool(Target.from_url(url, verify=verify), fields, **options)


def first_model(base_url: str, api_key: str | None, *, verify: bool = True) -> str:
    """The id of the first model that the server lists. Raises InferplaneError."""
    import httpx

    url = endpoint_url(base_url, "/v1/models")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # As the load itself: through no proxy, and trusting whom it trusts.
    trusted = Target.from_url(url, verify=verify).tls or True
    try:
        answer = httpx.get(url, headers=headers, timeout=10.0, verify=trusted, trust_env=False)
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InferplaneError(
            f"{url} names no model: {error}", code="bench.no_model", remedy="check --base-url, or name one with --model"
        ) from error
    except httpx.InvalidURL as error:
        raise InvalidValue("base_url", base_url, str(error)) from error


def _stream_failure(error: ExchangeFailed) -> tuple[str, str]:
    """What the sink refused is the server's word, or no chunk at all."""
    cause = error.__cause__
    if isinstance(cause, StreamFailed):
        return "stream", cause.message
    return error.code, error.message


def _error_message(refusal: bytes) -> str:
    try:
        return str(msgspec.json.decode(refusal)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return refusal[:200].decode(errors="replace")
