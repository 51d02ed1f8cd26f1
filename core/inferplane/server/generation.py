"""One API request while it runs: its sequences, their text, their times. Knows no shape of an answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET

from inferplane.client.outputs import OutputAssembler
from inferplane.client.processor_arguments import check_processor_arguments
from inferplane.client.requests import build_requests
from inferplane.errors import InferplaneError, QueueFull, TookTooLong
from inferplane.log import get_logger
from inferplane.metrics import SequenceTimer
from inferplane.server.claim import Claim
from inferplane.server.errors import INVALID_REQUEST, ApiError, bad_value, shutting_down
from inferplane.server.prompts import require_tokenizer
from inferplane.server.responses import PromptTokensDetails, RequestMetrics, Usage
from inferplane.telemetry import SequenceSpan
from inferplane.text.bad_words import bad_word_sequences
from inferplane_api.sampling import GREEDY_EPSILON, MIN_TEMPERATURE, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from typing import Any

    from msgspec import UnsetType

    from inferplane.client.interface import RequestStream
    from inferplane.client.outputs import Increment
    from inferplane.messages import Delta, Request
    from inferplane.metrics import RequestTimes
    from inferplane.server.context import ServerContext
    from inferplane.server.prompts import PromptInput
    from inferplane.server.schema import GenerationBody
    from inferplane.text.generation_defaults import Api
    from inferplane_api.step import TokenLogprobs


log = get_logger(__name__)

_STATUS = {"queue_timeout": 503, "refused": 400}
"""Of what the engine gives up, by its error code; everything else is a 500."""


class Finished(NamedTuple):
    """A whole sequence."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    finish_reason: str | None
    stop_reason: int | str | None


Gained: TypeAlias = "tuple[int, Increment, Delta]"
"""The sequence, what a delta adds to it, and the delta."""


class _Sequence(NamedTuple):
    request: Request
    assembler: OutputAssembler
    timer: SequenceTimer
    num_prompt_tokens: int


class Sampling(NamedTuple):
    """How to sample, and whether the client itself said how long."""

    params: SamplingParams
    client_set_length: bool

    def fitted(self, room: int) -> SamplingParams:
        """A max_tokens that is only a default becomes what the context has room for."""
        params = self.params
        if self.client_set_length or params.max_tokens is None or room < 1 or params.max_tokens <= room:
            return params
        return msgspec.structs.replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))


def sampling(context: ServerContext, values: dict[str, Any], api: Api) -> Sampling:
    """The client's values over the model's defaults over the API's. Raises InvalidValue."""
    return checked_sampling(context, SamplingParams(**context.prepared.defaults.apply(values, api)), values)


def checked_sampling(context: ServerContext, params: SamplingParams, values: Mapping[str, Any]) -> Sampling:
    """What needs the server's parts: words become tokens, processors' parameters are held to their declarations.

    Raises ApiError or InvalidValue.
    """
    if GREEDY_EPSILON <= params.temperature < MIN_TEMPERATURE and "temperature" not in context.warned:
        context.warned.add("temperature")
        log.warning("temperature %g is raised to %g; this is said once", params.temperature, MIN_TEMPERATURE)
    check_processor_arguments(params.extra_args, context.prepared.plan.logits_processors, "vllm_xargs")
    if params.bad_words:
        sequences = bad_word_sequences(params.bad_words, require_tokenizer(context, "bad_words"))
        params = msgspec.structs.replace(params, bad_words=(), bad_words_token_ids=sequences)
    return Sampling(params, "max_tokens" in values)


class Generation:
    """The sequences of one API request: prompt p's n sequences have the indices p * n to p * n + n - 1."""

    def __init__(
        self,
        context: ServerContext,
        prompts: Sequence[PromptInput],
        sampling: Sampling,
        body: GenerationBody,
        claim: Claim | None = None,
    ) -> None:
        """Raises ContextTooLong or InvalidValue; nothing has started yet."""
        self._context = context
        self._claim = claim or Claim(time.monotonic())
        arrival = time.monotonic()
        # The client's own id may not be unique, the engine's must be.
        unique = f"{body.request_id or 'request'}-{uuid.uuid4().hex[:16]}"
        limits = context.limits()
        self.n = sampling.params.n
        self.prompts = prompts
        self._requests: list[Request] = []
        for index, prompt in enumerate(prompts):
            self._requests += build_requests(
                prompt.token_ids,
                sampling.fitted(limits.max_model_len - len(prompt.token_ids)),
                limits,
                client_id=context.client.client_id,
                request_id=f"{unique}-{index}",
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
                draw_seed=context.draw_seed,
            )
        tokenizer = context.prepared.tokenizer
        self._sequences = [
            _Sequence(
                request,
                OutputAssembler(request, tokenizer),
                SequenceTimer(context.metrics, arrival),
                len(request.prompt_token_ids),
            )
            for request in self._requests
        ]
        self._num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self.num_sequences = len(self._requests)
        context.metrics.params_n.observe(self.n)
        self._request_id = body.request_id or unique
        self._interval = stream_interval(context, body)
        self._begun = False
        """Some sequence has a token."""
        self._cause = "disconnect"
        """Why what has not finished was ended: one of the metrics' ABORTS."""
        self._texts: list[list[str]] | None = [[] for _ in self._requests] if context.request_log.outputs else None
        if context.request_log.requests:
            context.request_log.request(self._request_id, prompts, sampling.params)
        for request in self._requests[:1]:
            context.metrics.params_max_tokens.observe(request.params.max_tokens or 0)

    async def increments(self) -> AsyncGenerator[list[Gained], None]:
        """Submit, and give what the deltas add, all that came at once together. Closing it early aborts what runs.

        Raises QueueFull or EngineDead, or ApiError 500 when the engine gives a sequence up; first it gives what came
        before that.
        """
        self._context.require_ready()
        stream = self._submit()
        self._context.num_running += 1
        left = self._claim.left()
        timer = None
        if left is not None:
            seconds = self._claim.request_timeout
            late = TookTooLong(f"the request is not done after the {seconds:g} s that it may take")
            timer = asyncio.get_running_loop().call_later(left, stream.fail, late)
        try:
            async with aclosing(stream.steps()) as steps:
                async for step in steps:
                    gained: list[Gained] = []
                    try:
                        self._take(stream, step, gained)
                    except ApiError:
                        if gained:
                            yield gained
                        raise
                    if gained:
                        yield gained
        except InferplaneError as error:
            self._cause = "timeout" if isinstance(error, TookTooLong) else "engine"
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._context.num_running -= 1
            stream.abort()
            self._measure_end()

    def _take(self, stream: RequestStream, step: list[tuple[int, Delta]], gained: list[Gained]) -> None:
        """Append what the deltas add. Raises ApiError where one ends the request."""
        now = time.monotonic()
        for index, delta in step:
            sequence = self._sequences[index]
            assembler = sequence.assembler
            if assembler.finished:
                continue
            increment = assembler.push(delta)
            if delta.queue_seconds is not None:
                sequence.timer.scheduled(delta.queue_seconds, sequence.num_prompt_tokens, delta.num_cached_tokens or 0)
            if increment.token_ids:
                self._begun = True
                sequence.timer.tokens(len(increment.token_ids), now)
            if self._texts is not None:
                self._log_output(index, increment)
            if increment.finish_reason is not None:
                if increment.abort:
                    stream.abort(index)
                self._finish(sequence, increment.finish_reason, delta)
            gained.append((index, increment, delta))

    def _finish(self, sequence: _Sequence, reason: str, delta: Delta) -> None:
        """Raises ApiError where the sequence's end is that of the request."""
        self._measure(sequence, reason)
        if reason == "error":
            self._cause = "sibling"
            raise given_up(self._context, delta)
        if reason == "abort":
            self._cause = "shutdown"
            self._context.metrics.aborted("shutdown")
            if not self._begun:
                raise shutting_down()

    def _measure(self, sequence: _Sequence, reason: str) -> None:
        sequence.timer.finish(reason, sequence.num_prompt_tokens)
        record_span(
            self._context, self._claim, sequence.request, sequence.timer, request_id=self._request_id, n=self.n,
            reason=reason,
        )  # fmt: skip

    def _measure_end(self) -> None:
        metrics = self._context.metrics
        for sequence in self._sequences:
            if not sequence.assembler.finished:
                self._measure(sequence, "abort")
                metrics.aborted(self._cause)
        metrics.max_generation_tokens.observe(max(each.assembler.num_tokens for each in self._sequences))

    def _submit(self) -> RequestStream:
        queue_left = self._claim.queue_left()
        requests = [
            msgspec.structs.replace(request, share=self._claim.share, queue_timeout=queue_left)
            for request in self._requests
        ]
        try:
            return self._context.client.submit(requests)
        except QueueFull as error:
            self._context.metrics.rejected(f"queue_{error.reason}")
            raise

    def _log_output(self, index: int, increment: Increment) -> None:
        assert self._texts is not None
        self._texts[index].append(increment.text)
        if increment.finish_reason is not None:
            num_tokens = self._sequences[index].assembler.num_tokens
            text = "".join(self._texts[index])
            self._context.request_log.output(self._request_id, index, text, num_tokens, increment.finish_reason)

    async def collect(self) -> list[Finished]:
        """All sequences, whole."""
        parts: list[list[Increment]] = [[] for _ in self._sequences]
        prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * len(parts)
        async with aclosing(self.increments()) as increments:
            async for gained in increments:
                for index, increment, delta in gained:
                    if increment.finish_reason == "abort":
                        # Half an answer must not look like a whole one.
                        raise shutting_down()
                    parts[index].append(increment)
                    if delta.prompt_logprobs is not None:
                        prompt_logprobs[index] = delta.prompt_logprobs
        # The first of a prompt's sequences scores it for all.
        return [_joined(some, prompt_logprobs[index - index % self.n]) for index, some in enumerate(parts)]

    def chunks(self) -> AsyncGenerator[list[Gained], None]:
        """`increments`, with as many tokens in each as the server's owner or the client asks for."""
        return self.increments() if self._interval == 1 else _gathered(self.increments(), self._interval)

    def usage(self) -> Usage:
        """Of all sequences so far."""
        completion = sum(sequence.assembler.num_tokens for sequence in self._sequences)
        cached = sum(sequence.assembler.num_cached_tokens for sequence in self._sequences[:: self.n])
        return self._usage(self._num_prompt_tokens, completion, cached)

    def metrics(self) -> RequestMetrics | UnsetType | None:
        """How long it took, where the server's owner wants it told; None for several sequences, which share no time."""
        if not self._context.server.enable_per_request_metrics:
            return UNSET
        return request_metrics(self._sequences[0].timer.times()) if self.num_sequences == 1 else None

    def usage_at_start(self) -> Usage:
        """Before the first token."""
        return self._usage(self._num_prompt_tokens, 0, 0)

    def usage_of(self, index: int, num_tokens: int) -> Usage:
        """Of one sequence, when it had so many tokens."""
        sequence = self._sequences[index]
        return self._usage(sequence.num_prompt_tokens, num_tokens, sequence.assembler.num_cached_tokens)

    def _usage(self, num_prompt_tokens: int, num_tokens: int, num_cached_tokens: int) -> Usage:
        return usage_of_tokens(self._context, num_prompt_tokens, num_tokens, num_cached_tokens)


def usage_of_tokens(context: ServerContext, num_prompt: int, num_completion: int, num_cached: int) -> Usage:
    """The counts as a client sees them."""
    details = context.server.enable_prompt_tokens_details
    return Usage(
        prompt_tokens=num_prompt,
        total_tokens=num_prompt + num_completion,
        completion_tokens=num_completion,
        prompt_tokens_details=PromptTokensDetails(num_cached) if details else None,
    )


def record_span(
    context: ServerContext,
    claim: Claim,
    request: Request,
    timer: SequenceTimer,
    *,
    request_id: str,
    n: int,
    reason: str,
) -> None:
    """Of one sequence, or of one prompt's beams, where the server's owner wants spans."""
    if context.tracing is None:
        return
    context.tracing.record(
        SequenceSpan(
            request_id=request_id,
            model=context.prepared.served_names[0],
            began=request.arrival,
            times=timer.times(),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_sequences=n,
            max_tokens=request.params.max_tokens,
            temperature=request.params.temperature,
            top_p=request.params.top_p,
            finish_reason=reason,
            trace=claim.trace,
        )
    )


def given_up(context: ServerContext, delta: Delta) -> ApiError:
    """The answer to a request that the engine gave up."""
    message = delta.error or "the engine gave the request up"
    if delta.error_code == "bad_processor_argument":
        return bad_value("vllm_xargs", message)
    status = _STATUS.get(delta.error_code, 500)
    headers = {}
    if delta.error_code == "queue_timeout":
        context.metrics.rejected("queue_timeout")
        headers = {"Retry-After": "5"}
    code = delta.error_code or "generation_failed"
    kind = INVALID_REQUEST if status == 400 else "server_error"
    return ApiError(status, message, code=code, kind=kind, headers=headers)


def stream_interval(context: ServerContext, body: GenerationBody) -> int:
    """Tokens per chunk. Raises ApiError 400 where the client wants fewer than the server's owner."""
    least = context.server.stream_interval
    if body.stream_interval is not None and body.stream_interval < least:
        raise bad_value("stream_interval", f"must be at least {least}, the server's own (--stream-interval)")
    return body.stream_interval or least


async def _gathered(
    increments: AsyncGenerator[list[Gained], None], interval: int
) -> AsyncGenerator[list[Gained], None]:
    """The first token of a sequence at once, then `interval` of them together, and what is left with the end."""
    begun: set[int] = set()
    held: dict[int, Increment] = {}
    async with aclosing(increments):
        async for gained in increments:
            given: list[Gained] = []
            for index, increment, delta in gained:
                if index in held:
                    increment = held.pop(index).then(increment)
                if index in begun and increment.finish_reason is None and len(increment.token_ids) < interval:
                    held[index] = increment
                    continue
                begun.add(index)
                given.append((index, increment, delta))
            if given:
                yield given


def _joined(parts: list[Increment], prompt_logprobs: list[TokenLogprobs | None] | None) -> Finished:
    last = parts[-1]
    logprobs: list[TokenLogprobs] = []
    token_ids: list[int] = []
    for part in parts:
        token_ids += part.token_ids
        logprobs += part.logprobs or []
    return Finished(
        text="".join(part.text for part in parts),
        token_ids=token_ids,
        logprobs=logprobs if len(logprobs) == len(token_ids) else None,
        prompt_logprobs=prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


def request_metrics(times: RequestTimes) -> RequestMetrics:
    """As vLLM tells them."""

    def milliseconds(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 3)

    gaps = times.num_tokens - 1
    mean = None if times.decode is None or gaps < 1 else times.decode / gaps
    return RequestMetrics(
        time_to_first_token_ms=milliseconds(times.prefill),
        generation_time_ms=milliseconds(times.decode),
        queue_time_ms=milliseconds(times.queue),
        mean_itl_ms=milliseconds(mean),
        tokens_per_second=round(times.num_tokens / times.inference, 3) if times.inference else None,
    )


class StreamUsage(NamedTuple):
    """Which chunks of a stream carry usage."""

    final: bool
    continuous: bool


def stream_usage(context: ServerContext, body: GenerationBody) -> StreamUsage:
    """What the client asked for, or the server's owner insists on."""
    options = body.stream_options
    final = context.server.enable_force_include_usage or bool(options is not None and options.include_usage)
    return StreamUsage(final, final and bool(options is not None and options.continuous_usage_stats))
