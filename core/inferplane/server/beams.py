"""One API request with beam search: rounds of single tokens at the engine, until the best sequences are known.

Knows no shape of an answer; what it offers is what answers read of a `Generation`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from inferplane.client.beam_search import BeamSearch
from inferplane.client.requests import build_requests
from inferplane.errors import InferplaneError, QueueFull, TookTooLong
from inferplane.metrics import SequenceTimer
from inferplane.server.errors import shutting_down
from inferplane.server.generation import Finished, Sampling, given_up, record_span, request_metrics, usage_of_tokens
from inferplane.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import UnsetType

    from inferplane.client.beam_search import BeamSearchParams, BeamSequence
    from inferplane.messages import Request
    from inferplane.server.claim import Claim
    from inferplane.server.context import ServerContext
    from inferplane.server.prompts import PromptInput
    from inferplane.server.responses import RequestMetrics, Usage
    from inferplane.server.schema import GenerationBody
    from inferplane_api.step import TokenLogprobs


class BeamGeneration:
    """The searches of one API request, one a prompt, round by round together; `n` sequences of each."""

    def __init__(
        self,
        context: ServerContext,
        prompts: Sequence[PromptInput],
        search: BeamSearchParams,
        body: GenerationBody,
        claim: Claim,
        *,
        fixed_length: bool,
    ) -> None:
        """fixed_length: the client has set max_tokens. Raises ContextTooLong or InvalidValue; nothing has started."""
        self._context = context
        self._claim = claim
        self.n = search.beam_width
        self.prompts = prompts
        self.num_sequences = self.n * len(prompts)
        limits, unique = context.limits(), f"{body.request_id or 'request'}-{uuid.uuid4().hex[:16]}"
        sampling = Sampling(search.sampling(), fixed_length)
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
            )
        self._searches = [BeamSearch(search, request) for request in self._requests]
        arrival = time.monotonic()
        self._timers = [SequenceTimer(context.metrics, arrival) for _ in prompts]
        self._prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * len(prompts)
        self._num_cached = [0] * len(prompts)
        self._num_tokens = 0
        self._taken = False
        """The engine's queue took the first round; a request that it refused was rejected, not aborted."""
        self._cause = "disconnect"
        self._request_id = body.request_id or unique
        context.metrics.params_n.observe(self.n)
        for request in self._requests[:1]:
            context.metrics.params_max_tokens.observe(request.params.max_tokens or 0)

    async def collect(self) -> list[Finished]:
        """All sequences, the best of each prompt first. Raises QueueFull, EngineDead, TookTooLong, or ApiError."""
        self._context.require_ready()
        self._context.num_running += 1
        reason = "abort"
        try:
            await self._run()
            reason = "stop"
        except InferplaneError as error:
            self._cause = "timeout" if isinstance(error, TookTooLong) else "engine"
            raise
        finally:
            self._context.num_running -= 1
            if self._taken:
                for timer, request in zip(self._timers, self._requests, strict=True):
                    self._measure(timer, request, reason)
        finished = []
        for index, search in enumerate(self._searches):
            finished += [self._finished(index, sequence) for sequence in search.best()]
        self._num_tokens = sum(len(sequence.token_ids) for sequence in finished)
        return finished

    def _measure(self, timer: SequenceTimer, request: Request, reason: str) -> None:
        timer.finish(reason, len(request.prompt_token_ids))
        if reason == "abort":
            self._context.metrics.aborted(self._cause)
        record_span(self._context, self._claim, request, timer, request_id=self._request_id, n=self.n, reason=reason)

    def usage(self) -> Usage:
        """Of the sequences that are returned, not of the beams that were left."""
        num_prompt = sum(len(prompt.token_ids) for prompt in self.prompts)
        return usage_of_tokens(self._context, num_prompt, self._num_tokens, sum(self._num_cached))

    def metrics(self) -> RequestMetrics | UnsetType | None:
        """How long it took, where the server's owner wants it told."""
        if not self._context.server.enable_per_request_metrics:
            return msgspec.UNSET
        return request_metrics(self._timers[0].times()) if len(self._timers) == 1 else None

    async def _run(self) -> None:
        left = self._claim.left()
        try:
            await asyncio.wait_for(self._search(), left)
        except TimeoutError as error:
            seconds = self._claim.request_timeout
            raise TookTooLong(f"the request is not done after the {seconds:g} s that it may take") from error

    async def _search(self) -> None:
        while active := [index for index, search in enumerate(self._searches) if not search.done]:
            owners: list[int] = []
            requests: list[Request] = []
            for index in active:
                sent = self._searches[index].requests()
                requests += sent
                owners += [index] * len(sent)
            reports = await self._round(requests, owners)
            now = time.monotonic()
            for index in active:
                self._searches[index].advance([r for r, owner in zip(reports, owners, strict=True) if owner == index])
                self._timers[index].tokens(1, now)

    async def _round(self, requests: list[Request], owners: list[int]) -> list[TokenLogprobs]:
        queue_left = self._claim.queue_left()
        claimed = [
            msgspec.structs.replace(request, share=self._claim.share, queue_timeout=queue_left) for request in requests
        ]
        try:
            stream = self._context.client.submit(claimed)
        except QueueFull as error:
            self._context.metrics.rejected(f"queue_{error.reason}")
            raise
        self._taken = True
        reports: list[TokenLogprobs | None] = [None] * len(requests)
        try:
            async for index, delta in stream:
                if delta.finish_reason == "error":
                    self._cause = "engine"
                    raise given_up(self._context, delta)
                if delta.finish_reason == "abort":
                    self._cause = "shutdown"
                    raise shutting_down()
                owner = owners[index]
                if delta.prompt_logprobs is not None:
                    self._prompt_logprobs[owner] = delta.prompt_logprobs
                if delta.queue_seconds is not None and len(requests[index].prompt_token_ids) == len(
                    self.prompts[owner].token_ids
                ):
                    self._num_cached[owner] = delta.num_cached_tokens or 0
                    num_prompt = len(self.prompts[owner].token_ids)
                    self._timers[owner].scheduled(delta.queue_seconds, num_prompt, self._num_cached[owner])
                if delta.logprobs:
                    reports[index] = delta.logprobs[0]
        finally:
            stream.abort()
        assert all(report is not None for report in reports), "a request for one token with log-probabilities has both"
        return [report for report in reports if report is not None]

    def _finished(self, index: int, sequence: BeamSequence) -> Finished:
        request, ended = self._requests[index], sequence.finish_reason == "stop"
        detokenizer = Detokenizer(self._context.prepared.tokenizer, request.params, request.prompt_token_ids)
        text = detokenizer.push(sequence.token_ids, stopped_by_token=ended).text + detokenizer.finish()
        return Finished(
            text=text,
            token_ids=sequence.token_ids,
            logprobs=sequence.logprobs,
            prompt_logprobs=self._prompt_logprobs[index],
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )
