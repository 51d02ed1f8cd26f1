"""Beam searches of the offline API: all prompts together, round by round, over a driver. Knows no HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.client.beam_search import BeamSearch
from inferplane.client.outputs import CompletionOutput, RequestOutput, logprob_table
from inferplane.errors import InferplaneError
from inferplane.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.client.beam_search import BeamSearchParams, BeamSequence
    from inferplane.client.drivers import EngineDriver
    from inferplane.messages import Delta, Request
    from inferplane.text.tokenizer import Tokenizer
    from inferplane_api.step import TokenLogprobs


class BeamRun:
    """One prompt's search and what its result needs."""

    def __init__(self, params: BeamSearchParams, request: Request, text: str | None) -> None:
        self._params = params
        self._request = request
        self._text = text
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._num_cached: int | None = None
        self.search = BeamSearch(params, request)

    def note(self, delta: Delta) -> None:
        """What the first round tells of the prompt."""
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        if self._num_cached is None:
            self._num_cached = delta.num_cached_tokens

    def output(self, tokenizer: Tokenizer | None) -> RequestOutput:
        """The result, in the shape of `generate`."""
        scores = self._prompt_logprobs
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._text,
            prompt_token_ids=self._request.prompt_token_ids,
            prompt_logprobs=None
            if scores is None
            else [None if entry is None else logprob_table(entry, tokenizer) for entry in scores],
            outputs=[self._sequence(index, found, tokenizer) for index, found in enumerate(self.search.best())],
            finished=True,
            num_cached_tokens=self._num_cached or 0,
        )

    def _sequence(self, index: int, found: BeamSequence, tokenizer: Tokenizer | None) -> CompletionOutput:
        detokenizer = Detokenizer(tokenizer, self._request.params, self._request.prompt_token_ids)
        piece = detokenizer.push(found.token_ids, stopped_by_token=found.finish_reason == "stop")
        wanted = self._params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=piece.text + detokenizer.finish(),
            token_ids=found.token_ids,
            cumulative_logprob=found.cumulative_logprob,
            logprobs=[logprob_table(entry, tokenizer) for entry in found.logprobs] if wanted else None,
            finish_reason=found.finish_reason,
            stop_reason=found.stop_reason,
        )


def run(runs: Sequence[BeamRun], driver: EngineDriver, tokenizer: Tokenizer | None) -> list[RequestOutput]:
    """Search to the end. Raises InferplaneError for a request that the engine gives up, or EngineDead."""
    while active := [each for each in runs if not each.search.done]:
        for each, reports in _round(active, driver):
            each.search.advance(reports)
    return [each.output(tokenizer) for each in runs]


def _round(active: Sequence[BeamRun], driver: EngineDriver) -> list[tuple[BeamRun, list[TokenLogprobs]]]:
    sent = [(each, each.search.requests()) for each in active]
    owners = {request.request_id: each for each, requests in sent for request in requests}
    found: dict[str, TokenLogprobs] = {}
    for _, requests in sent:
        for request in requests:
            driver.submit(request)
    waiting = set(owners)
    try:
        while waiting:
            for delta in driver.poll():
                if delta.request_id not in waiting:
                    continue
                if delta.error is not None:
                    raise InferplaneError(f"request {delta.request_id}: {delta.error}", code="request.failed")
                owners[delta.request_id].note(delta)
                if delta.logprobs:
                    found[delta.request_id] = delta.logprobs[0]
                if delta.finish_reason is not None:
                    waiting.discard(delta.request_id)
    finally:
        if waiting:
            driver.abort(list(waiting))
    return [(each, [found[request.request_id] for request in requests]) for each, requests in sent]
