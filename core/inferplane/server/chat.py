"""POST /v1/chat/completions: messages through the chat template, answers as messages or chunks of one."""

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
from inferplane.server.errors import CLIENT_CLOSED, to_api_error
from inferplane.server.generation import Generation, sampling, stream_usage
from inferplane.server.logprobs import chat_logprobs, prompt_logprobs
from inferplane.server.prompts import PromptInput, encode_prompt
from inferplane.server.responses import ChatChoice, ChatCompletion, ChatLogprobs, ChatMessage
from inferplane.server.sse import DONE, ChunkFrame, EventStream, attended, encode, until_disconnect
from inferplane.server.templating import adds_generation_prompt, last_text, render_conversation
from inferplane.server.validation import beam_search_params, chat_field_names, chat_values, check_body, check_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request

    from inferplane.client.outputs import Increment
    from inferplane.server.context import ServerContext
    from inferplane.server.generation import Finished
    from inferplane.server.schema import ChatBody
    from inferplane_api.step import TokenLogprobs


_PIECE = b',"delta":{"content":', b'},"logprobs":null,"finish_reason":null'
"""What stands around the text of a choice that goes on."""


async def create_chat_completion(context: ServerContext, request: Request, body: ChatBody) -> Response:
    """The route's work. Raises ApiError."""
    model = check_model(body.model, context.prepared.served_names)
    context.require_ready()
    check_body(body, 1)
    try:
        values = chat_values(body, context.prepared.plan.model.vocab_size)
        claim = claim_of(request, context.server, body.user)
        search = beam_search_params(body, context.prepared.defaults.apply(values, "chat"))
        if search is not None:
            prompt = await attended(request, claim, chat_prompt(context, body))
            generation: Generation | BeamGeneration = BeamGeneration(
                context, [prompt], search, body, claim, fixed_length="max_tokens" in values
            )
        else:
            how = sampling(context, values, "chat")
            prompt = await attended(request, claim, chat_prompt(context, body))
            generation = Generation(context, [prompt], how, body, claim)
    except InferplaneError as error:
        raise to_api_error(error, chat_field_names(body)) from error
    answer = _Answer(context, body, generation, model)
    if isinstance(generation, Generation) and body.stream:
        return EventStream(answer.events(generation))
    finished = await until_disconnect(request.receive, generation.collect())
    if finished is None:
        return Response(status_code=CLIENT_CLOSED)
    return Response(msgspec.json.encode(answer.whole(finished)), media_type="application/json")


async def chat_prompt(context: ServerContext, body: ChatBody) -> PromptInput:
    """The conversation as the model reads it. Raises ApiError or InvalidValue."""
    text = await context.text.templates.run(render_conversation, context, body)
    return await encode_prompt(
        context,
        text,
        field="messages",
        # The template has written them.
        add_special_tokens=bool(body.add_special_tokens),
        truncate=body.truncate_prompt_tokens,
    )


class _Answer:
    """The shapes of one request's answer, whole or as a stream."""

    def __init__(
        self, context: ServerContext, body: ChatBody, generation: Generation | BeamGeneration, model: str
    ) -> None:
        self._context = context
        self._body = body
        self._generation = generation
        self._model = model
        self._id = f"chatcmpl-{body.request_id or uuid.uuid4().hex}"
        self._created = int(time.time())
        as_ids = context.server.return_tokens_as_token_ids
        self._as_ids = as_ids if body.return_tokens_as_token_ids is None else body.return_tokens_as_token_ids
        self._role = context.server.response_role if adds_generation_prompt(body) else body.messages[-1].role
        self._echoed = last_text(body.messages[-1]) if body.echo and body.messages[-1].role == self._role else ""

    def whole(self, finished: Sequence[Finished]) -> ChatCompletion:
        """The answer of a request without stream."""
        body, first = self._body, finished[0]
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, sequence) for index, sequence in enumerate(finished)],
            usage=self._generation.usage(),
            metrics=self._generation.metrics(),
        )
        if body.prompt_logprobs is not None:
            scores = prompt_logprobs(first.prompt_logprobs, self._context.names)
            answer = msgspec.structs.replace(answer, prompt_logprobs=scores)
        if body.return_token_ids:
            answer = msgspec.structs.replace(answer, prompt_token_ids=self._generation.prompts[0].token_ids)
        return answer

    def _choice(self, index: int, sequence: Finished) -> ChatChoice:
        choice = ChatChoice(
            index=index,
            message=ChatMessage(role=self._role, content=self._echoed + sequence.text),
            logprobs=self._logprobs(sequence.logprobs),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )
        return msgspec.structs.replace(choice, token_ids=sequence.token_ids) if self._body.return_token_ids else choice

    def _logprobs(self, entries: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
        if not self._body.logprobs or entries is None:
            return None
        return chat_logprobs(entries, self._context.names, self._body.top_logprobs or 0, self._as_ids)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The answer of a request with stream: the roles, then what every token adds."""
        body = self._body
        usage = stream_usage(self._context, body)
        frame = ChunkFrame(self._id, "chat.completion.chunk", self._created, self._model, usage.final, _PIECE)
        every_chunk = bool(body.logprobs or body.return_token_ids or usage.continuous)
        begun = False
        async with aclosing(generation.chunks()) as increments:
            async for gained in increments:
                chunks: list[bytes] = []
                if not begun:
                    begun = True
                    chunks = self._opening(generation, frame, usage.continuous)
                for index, increment, _ in gained:
                    if increment.finish_reason is None and not every_chunk:
                        if increment.text:
                            chunks.append(frame.piece(index, increment.text))
                        continue
                    now = generation.usage_of(index, increment.num_tokens) if usage.continuous else None
                    chunks.append(frame.chunk(self._chunk(index, increment), now))
                if chunks:
                    yield b"".join(chunks)
        if usage.final:
            yield frame.usage(generation.usage(), generation.metrics())
        yield DONE

    def _opening(self, generation: Generation, frame: ChunkFrame, continuous: bool) -> list[bytes]:
        """The role of every choice, then the echoed text."""
        before, rest = _PIECE
        usage = generation.usage_at_start() if continuous else None
        ids = {"prompt_token_ids": generation.prompts[0].token_ids} if self._body.return_token_ids else None
        chunks = []
        for index in range(generation.num_sequences):
            choice = b"%d" % index + b',"delta":{"role":' + encode(self._role) + b',"content":""' + rest
            chunks.append(frame.chunk(choice, usage, ids))
        if self._echoed:
            text = before + encode(self._echoed) + rest
            chunks += [frame.chunk(b"%d" % index + text, usage) for index in range(generation.num_sequences)]
        return chunks

    def _chunk(self, index: int, increment: Increment) -> bytes:
        choice = b"%d" % index + b',"delta":{"content":' + encode(increment.text) + b'},"logprobs":'
        logprobs = self._logprobs(increment.logprobs)
        choice += b"null" if logprobs is None else encode(logprobs)
        if increment.finish_reason is None:
            choice += b',"finish_reason":null'
        else:
            choice += b',"finish_reason":' + encode(increment.finish_reason)
            choice += b',"stop_reason":' + encode(increment.stop_reason)
        if self._body.return_token_ids:
            choice += b',"token_ids":' + encode(increment.token_ids)
        return choice
