"""POST /v1/completions: prompts as text or tokens, one choice per prompt times n."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from inferplane.errors import InferplaneError
from inferplane.server.beams import BeamGeneration
from inferplane.server.claim import claim_of
from inferplane.server.errors import CLIENT_CLOSED, bad_value, to_api_error
from inferplane.server.generation import Generation, sampling, stream_usage
from inferplane.server.logprobs import CompletionLogprobsWriter, prompt_logprobs
from inferplane.server.prompts import PromptInput, encode_prompt, truncated
from inferplane.server.responses import Completion, CompletionChoice, CompletionLogprobs
from inferplane.server.sse import DONE, ChunkFrame, EventStream, attended, encode, until_disconnect
from inferplane.server.validation import (
    COMPLETION_FIELD_NAMES,
    beam_search_params,
    check_body,
    check_model,
    completion_values,
)
from inferplane.text.detokenizer import PROMPT_TAIL, TextStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request

    from inferplane.client.outputs import Increment
    from inferplane.messages import Delta
    from inferplane.server.context import ServerContext
    from inferplane.server.generation import Finished
    from inferplane.server.schema import CompletionBody
    from inferplane_api.step import TokenLogprobs


_PIECE = b',"text":', b',"logprobs":null,"finish_reason":null,"stop_reason":null'
"""What stands around the text of a choice that goes on."""


async def create_completion(context: ServerContext, request: Request, body: CompletionBody) -> Response:
    """The route's work. Raises ApiError."""
    model = check_model(body.model, context.prepared.served_names)
    context.require_ready()
    check_body(body, len(body.prompt or ()))
    try:
        values = completion_values(body, context.prepared.plan.model.vocab_size)
        claim = claim_of(request, context.server, body.user)
        search = beam_search_params(body, context.prepared.defaults.apply(values, "completions"))
        if search is not None:
            prompts = await attended(request, claim, completion_prompts(context, body))
            generation: Generation | BeamGeneration = BeamGeneration(
                context, prompts, search, body, claim, fixed_length="max_tokens" in values
            )
        else:
            how = sampling(context, values, "completions")
            prompts = await attended(request, claim, completion_prompts(context, body))
            generation = Generation(context, prompts, how, body, claim)
    except InferplaneError as error:
        raise to_api_error(error, COMPLETION_FIELD_NAMES) from error
    answer = _Answer(context, body, generation, model)
    if isinstance(generation, Generation) and body.stream:
        return EventStream(answer.events(generation))
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
        found = await encode_prompt(context, prompt, field="prompt", add_special_tokens=special)
        kept = truncated(context, found.token_ids, body.truncate_prompt_tokens)
        if len(kept) == len(found.token_ids):
            return found
        # What was cut off is no part of the prompt: the text is that of what is left.
        return PromptInput(_decoded(context, kept, body), kept)
    ids = truncated(context, prompt, body.truncate_prompt_tokens)
    return PromptInput(_decoded(context, ids, body), ids)


def _decoded(context: ServerContext, ids: list[int], body: CompletionBody) -> str | None:
    """The text that echo gives back; None where nobody asks, or the ids are refused later."""
    tokenizer = context.prepared.tokenizer
    known = range(context.prepared.plan.model.vocab_size)
    if not body.echo or tokenizer is None or not all(token_id in known for token_id in ids):
        return None
    return tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens is not False)


class _Answer:
    """The shapes of one request's answer, whole or as a stream."""

    def __init__(
        self, context: ServerContext, body: CompletionBody, generation: Generation | BeamGeneration, model: str
    ) -> None:
        self._context = context
        self._body = body
        self._generation = generation
        self._model = model
        self._id = f"cmpl-{body.request_id or uuid.uuid4().hex}"
        self._created = int(time.time())
        as_ids = context.server.return_tokens_as_token_ids
        as_ids = as_ids if body.return_tokens_as_token_ids is None else body.return_tokens_as_token_ids
        self._as_ids = as_ids
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._prompt_scores: dict[int, Sequence[TokenLogprobs | None]] = {}

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
        which = index // self._generation.n
        if prompt_entries is not None:
            # The first of a prompt's sequences scores it for all.
            self._prompt_scores[which] = prompt_entries
        if first and self._body.echo and which in self._prompt_scores:
            ids = [*self._generation.prompts[which].token_ids, *token_ids]
            scores = [*self._prompt_scores[which], *scores]
        return self._writer(index).write(ids, scores)

    def _writer(self, index: int) -> CompletionLogprobsWriter:
        if index not in self._writers:
            body, tokenizer, stream = self._body, self._context.prepared.tokenizer, None
            if tokenizer is not None:
                skipped, spaced = body.skip_special_tokens is not False, body.spaces_between_special_tokens is not False
                stream = TextStream(tokenizer, skipped, spaced)
                if not body.echo:
                    stream.prime(self._generation.prompts[index // self._generation.n].token_ids[-PROMPT_TAIL:])
            self._writers[index] = CompletionLogprobsWriter(
                self._context.names, self._body.logprobs or 0, self._as_ids, stream
            )
        return self._writers[index]

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The answer of a request with stream."""
        body = self._body
        usage = stream_usage(self._context, body)
        frame = ChunkFrame(self._id, "text_completion", self._created, self._model, usage.final, _PIECE)
        begun = [False] * generation.num_sequences
        every_chunk = body.logprobs is not None or body.return_token_ids or usage.continuous
        async with aclosing(generation.chunks()) as increments:
            async for gained in increments:
                chunks: list[bytes] = []
                for index, increment, delta in gained:
                    text, first = increment.text, not begun[index]
                    if first:
                        begun[index] = True
                        text = self._echoed(generation.prompts[index // generation.n]) + text
                    if increment.finish_reason is None and not every_chunk:
                        if text:
                            chunks.append(frame.piece(index, text))
                        continue
                    now = generation.usage_of(index, increment.num_tokens) if usage.continuous else None
                    chunks.append(frame.chunk(self._chunk(index, text, increment, delta, first), now))
                if chunks:
                    yield b"".join(chunks)
        if usage.final:
            yield frame.usage(generation.usage(), generation.metrics())
        yield DONE

    def _chunk(self, index: int, text: str, increment: Increment, delta: Delta, first: bool) -> bytes:
        logprobs = self._logprobs(index, increment.token_ids, increment.logprobs, delta.prompt_logprobs, first)
        choice = b"%d" % index + b',"text":' + encode(text)
        choice += b',"logprobs":' + (b"null" if logprobs is None else encode(logprobs))
        choice += b',"finish_reason":' + encode(increment.finish_reason)
        choice += b',"stop_reason":' + encode(increment.stop_reason)
        if self._body.return_token_ids:
            choice += b',"token_ids":' + encode(increment.token_ids)
            if first:
                prompt = self._generation.prompts[index // self._generation.n]
                choice += b',"prompt_token_ids":' + encode(prompt.token_ids)
        return choice
