"""POST /v1/completions: prompts as text or tokens, one choice per prompt times n."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from inferplane.errors import InferplaneError
from inferplane.server.claim import claim_of
from inferplane.server.errors import CLIENT_CLOSED, bad_value, to_api_error
from inferplane.server.generation import (
    Generation,
    PromptInput,
    encode_prompt,
    sampling,
    stream_usage,
    truncated,
)
from inferplane.server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from inferplane.server.responses import Completion, CompletionChoice, CompletionLogprobs
from inferplane.server.sse import DONE, ChunkFrame, EventStream, attended, encode, until_disconnect
from inferplane.server.validation import check_body, check_model, completion_values

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request

    from inferplane.server.context import ServerContext
    from inferplane.server.generation import Finished
    from inferplane.server.schema import CompletionBody
    from inferplane_api.step import TokenLogprobs


async def create_completion(context: ServerContext, request: Request, body: CompletionBody) -> Response:
    """The route's work. Raises ApiError."""
    model = check_model(body.model, context.prepared.served_names)
    context.require_ready()
    check_body(body, len(body.prompt or ()))
    try:
        how = sampling(context, completion_values(body, context.prepared.plan.model.vocab_size), "completions")
        claim = claim_of(request, context.server, body.user)
        prompts = await attended(request, claim, completion_prompts(context, body))
        generation = Generation(context, prompts, how, body, claim)
    except InferplaneError as error:
        raise to_api_error(error) from error
    answer = _Answer(context, body, generation, model)
    if body.stream:
        return EventStream(answer.events())
    finished = await until_disconnect(request.receive, generation.collect())
    if finished is None:
        return Response(status_code=CLIENT_CLOSED)
    return Response(msgspec.json.encode(answer.whole(finished)), media_type="application/json")


async def completion_prompts(context: ServerContext, body: CompletionBody) -> list[PromptInput]:
    """The prompts as the model reads them. Raises ApiError."""
    if body.prompt is None:
        raise bad_value("prompt", "field required", code="missing_value")
    return [await _prompt(context, prompt, body) for prompt in body.prompt]


async def _prompt(context: ServerContext, prompt: str | list[int], body: CompletionBody) -> PromptInput:
    if isinstance(prompt, str):
        special = body.add_special_tokens is not False
        return await encode_prompt(
            context, prompt, field="prompt", add_special_tokens=special, truncate=body.truncate_prompt_tokens
        )
    ids = truncated(context, prompt, body.truncate_prompt_tokens)
    text = None
    tokenizer = context.prepared.tokenizer
    known = range(context.prepared.plan.model.vocab_size)
    if body.echo and tokenizer is not None and all(token_id in known for token_id in ids):
        text = tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens is not False)
    return PromptInput(text, ids)


class _Answer:
    """The shapes of one request's answer, whole or as a stream."""

    def __init__(self, context: ServerContext, body: CompletionBody, generation: Generation, model: str) -> None:
        self._context = context
        self._body = body
        self._generation = generation
        self._model = model
        self._id = f"cmpl-{body.request_id or uuid.uuid4().hex}"
        self._created = int(time.time())
        as_ids = context.server.return_tokens_as_token_ids
        as_ids = as_ids if body.return_tokens_as_token_ids is None else body.return_tokens_as_token_ids
        self._writers = [
            CompletionLogprobsWriter(context.names, body.logprobs or 0, as_ids) for _ in range(generation.num_sequences)
        ]

    def whole(self, finished: Sequence[Finished]) -> Completion:
        """The answer of a request without stream."""
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, sequence) for index, sequence in enumerate(finished)],
            usage=self._generation.usage(),
            metrics=self._generation.metrics(),
        )

    def _choice(self, index: int, sequence: Finished) -> CompletionChoice:
        body = self._body
        prompt = self._generation.prompts[index // self._generation.n]
        choice = CompletionChoice(
            index=index,
            text=self._echoed(prompt) + sequence.text,
            logprobs=self._logprobs(index, sequence.token_ids, sequence.logprobs, sequence.prompt_logprobs, True),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )
        if body.return_token_ids:
            ids = [*prompt.token_ids, *sequence.token_ids] if body.echo else sequence.token_ids
            choice = msgspec.structs.replace(choice, token_ids=ids, prompt_token_ids=prompt.token_ids)
        if body.prompt_logprobs is not None:
            scores = prompt_logprobs(sequence.prompt_logprobs, self._context.names)
            choice = msgspec.structs.replace(choice, prompt_logprobs=scores or [])
        return choice

    def _echoed(self, prompt: PromptInput) -> str:
        return prompt.text or "" if self._body.echo else ""

    def _logprobs(
        self,
        index: int,
        token_ids: list[int],
        entries: list[TokenLogprobs] | None,
        prompt_entries: Sequence[TokenLogprobs | None] | None,
        first: bool,
    ) -> CompletionLogprobs | None:
        """Of a sequence or a piece of it; the first piece holds the echoed prompt."""
        if self._body.logprobs is None:
            return None
        ids: list[int] = token_ids
        scores: list[TokenLogprobs | None] = list(entries or ())
        if first and self._body.echo and prompt_entries is not None:
            ids = [*self._generation.prompts[index // self._generation.n].token_ids, *token_ids]
            scores = [*prompt_entries, *scores]
        return self._writers[index].write(ids, scores)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer of a request with stream."""
        body, generation = self._body, self._generation
        usage = stream_usage(self._context, body)
        frame = ChunkFrame(self._id, "text_completion", self._created, self._model, usage.final)
        begun = [False] * generation.num_sequences
        every_chunk = body.logprobs is not None or body.return_token_ids or usage.continuous
        async with aclosing(generation.increments()) as increments:
            async for index, increment, delta in increments:
                text, first = increment.text, not begun[index]
                if first:
                    begun[index] = True
                    text = self._echoed(generation.prompts[index // generation.n]) + text
                if not text and increment.finish_reason is None and not every_chunk:
                    continue
                choice = b"%d" % index + b',"text":' + encode(text)
                logprobs = self._logprobs(index, increment.token_ids, increment.logprobs, delta.prompt_logprobs, first)
                choice += b',"logprobs":' + (b"null" if logprobs is None else encode(logprobs))
                choice += b',"finish_reason":' + encode(increment.finish_reason)
                choice += b',"stop_reason":' + encode(increment.stop_reason)
                if body.return_token_ids:
                    choice += b',"token_ids":' + encode(increment.token_ids)
                    if first:
                        prompt = generation.prompts[index // generation.n]
                        choice += b',"prompt_token_ids":' + encode(prompt.token_ids)
                yield frame.chunk(choice, generation.usage_of(index) if usage.continuous else None)
        if usage.final:
            yield frame.usage(generation.usage(), generation.metrics())
        yield DONE
