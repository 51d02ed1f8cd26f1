"""The vectors of one API request on their way from the engine: batches, ends and measurements. Knows no tokenizer."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from inferplane.client.pooling import build_pooling_request
from inferplane.errors import InferplaneError, QueueFull, TookTooLong
from inferplane.metrics.timer import RequestTimes
from inferplane.server.errors import INVALID_REQUEST, ApiError, shutting_down
from inferplane.server.responses import PromptTokensDetails, Usage
from inferplane.telemetry import SequenceSpan

if TYPE_CHECKING:
    from inferplane.client.interface import RequestStream
    from inferplane.messages import Delta
    from inferplane.messages import Request as EngineRequest
    from inferplane.server.claim import Claim
    from inferplane.server.context import ServerContext
    from inferplane.server.embedding_schema import EmbeddingOptions
    from inferplane.server.prompts import PromptInput
    from inferplane_api.pooling import PoolingParams

_OPEN_BATCHES = 3
"""Of a request with many inputs: one is computed, one waits, and one may be on its way back."""
_PAUSE_SECONDS = 0.05
_STATUS = {"queue_timeout": 503, "refused": 400}
"""Of what the engine gives up, by its error code; everything else is a 500."""


class EmbeddingWork:
    """The vectors of one API request on their way."""

    def __init__(
        self,
        context: ServerContext,
        prompts: list[PromptInput],
        params: PoolingParams,
        body: EmbeddingOptions,
        claim: Claim,
    ) -> None:
        """Raises ContextTooLong or InvalidValue; nothing has started yet."""
        self._context = context
        self._claim = claim
        # The client's own id may not be unique, the engine's must be.
        unique = f"{body.request_id}-{uuid.uuid4().hex[:16]}"
        limits = context.limits()
        self._requests = [
            build_pooling_request(
                prompt.token_ids,
                params,
                limits,
                client_id=context.client.client_id,
                request_id=f"{unique}-{index}",
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
            )
            for index, prompt in enumerate(prompts)
        ]
        self._vectors: list[bytes | None] = [None] * len(prompts)
        self._num_cached = 0
        self._cause = "disconnect"
        """Why what has not finished was ended: one of the metrics' ABORTS."""
        self._queue_seconds: float | None = None
        """Of the input that waited longest."""
        self._request_id = body.request_id or unique
        if context.request_log.requests:
            context.request_log.request(self._request_id, prompts, self._requests[0].params)

    async def vectors(self) -> list[bytes]:
        """Little-endian float32, in the order of the prompts. Whatever ends this early aborts what still runs.

        Raises QueueFull, EngineDead or TookTooLong, or ApiError when the engine gives a prompt up.
        """
        self._context.require_ready()
        streams: deque[tuple[int, RequestStream]] = deque()
        batches = self._batches()
        try:
            self._fill(streams, batches)
        except QueueFull as error:
            if not streams:
                self._context.metrics.rejected(f"queue_{error.reason}")
                raise
        self._context.num_running += 1
        try:
            async with asyncio.timeout(self._claim.left()):
                await self._work_off(streams, batches)
        except TimeoutError:
            self._cause = "timeout"
            seconds = self._claim.request_timeout
            raise TookTooLong(f"the request is not done after the {seconds:g} s that it may take") from None
        except InferplaneError:
            self._cause = "engine"
            raise
        finally:
            self._context.num_running -= 1
            for _, stream in streams:
                stream.abort()
            self._measure_end()
        return [vector for vector in self._vectors if vector is not None]

    def usage(self) -> Usage:
        """Of all prompts."""
        total = sum(len(request.prompt_token_ids) for request in self._requests)
        details = self._context.server.enable_prompt_tokens_details
        return Usage(
            prompt_tokens=total,
            total_tokens=total,
            completion_tokens=0,
            prompt_tokens_details=PromptTokensDetails(self._num_cached) if details else None,
        )

    def _batches(self) -> deque[int]:
        """Where each batch begins: as many prompts as the engine computes at a time, so that one request of very many
        leaves room in the queue for others."""
        return deque(range(0, len(self._requests), self._context.client.capacity.max_num_seqs))

    async def _work_off(self, streams: deque[tuple[int, RequestStream]], batches: deque[int]) -> None:
        """What has begun goes on: a queue that is full meanwhile is waited for."""
        while streams or batches:
            if streams:
                first, stream = streams[0]
                async for index, delta in stream:
                    self._take(first + index, delta)
                streams.popleft()
            else:
                await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(QueueFull):
                self._fill(streams, batches)

    def _fill(self, streams: deque[tuple[int, RequestStream]], batches: deque[int]) -> None:
        """Keep a few batches with the engine. Raises QueueFull."""
        size = self._context.client.capacity.max_num_seqs
        queue_left = self._claim.queue_left()
        while batches and len(streams) < _OPEN_BATCHES:
            requests: list[EngineRequest] = [
                msgspec.structs.replace(request, share=self._claim.share, queue_timeout=queue_left)
                for request in self._requests[batches[0] : batches[0] + size]
            ]
            stream = self._context.client.submit(requests)
            streams.append((batches.popleft(), stream))

    def _take(self, index: int, delta: Delta) -> None:
        metrics, num_tokens = self._context.metrics, len(self._requests[index].prompt_token_ids)
        if delta.queue_seconds is not None:
            cached = delta.num_cached_tokens or 0
            self._num_cached += cached
            self._queue_seconds = max(self._queue_seconds or 0.0, delta.queue_seconds)
            metrics.queue_time.observe(delta.queue_seconds)
            metrics.prompt(num_tokens, cached)
        if delta.finish_reason == "error":
            self._cause = "sibling"
            raise self._given_up(delta)
        if delta.finish_reason == "abort":
            self._cause = "shutdown"
            raise shutting_down()
        if delta.pooled is None:
            return
        self._vectors[index] = delta.pooled
        metrics.finished("stop")
        metrics.prompt_tokens.observe(num_tokens)
        metrics.e2e_latency.observe(time.monotonic() - self._claim.since)

    def _measure_end(self) -> None:
        metrics, tracing = self._context.metrics, self._context.tracing
        num_missing = self._vectors.count(None)
        for _ in range(num_missing):
            metrics.finished("abort")
            metrics.aborted(self._cause)
        if tracing is None:
            return
        nothing = dict.fromkeys(("time_to_first_token", "prefill", "decode", "inference"))
        seconds = time.monotonic() - self._claim.since
        tracing.record(
            SequenceSpan(
                request_id=self._request_id,
                model=self._context.prepared.served_names[0],
                began=self._requests[0].arrival,
                times=RequestTimes(queue=self._queue_seconds, e2e=seconds, num_tokens=0, **nothing),
                num_prompt_tokens=sum(len(request.prompt_token_ids) for request in self._requests),
                num_sequences=len(self._requests),
                max_tokens=0,
                temperature=0.0,
                top_p=1.0,
                finish_reason="abort" if num_missing else "stop",
                trace=self._claim.trace,
            )
        )

    def _given_up(self, delta: Delta) -> ApiError:
        message = delta.error or "the engine gave the request up"
        status = _STATUS.get(delta.error_code, 500)
        headers = {}
        if delta.error_code == "queue_timeout":
            self._context.metrics.rejected("queue_timeout")
            headers = {"Retry-After": "5"}
        code = delta.error_code or "pooling_failed"
        kind = INVALID_REQUEST if status == 400 else "server_error"
        return ApiError(status, message, code=code, kind=kind, headers=headers)
