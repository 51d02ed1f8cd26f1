"""From prompts to pooled engine requests, and from their deltas to vectors. Knows no HTTP."""

from __future__ import annotations

import sys
import time
from array import array
from typing import TYPE_CHECKING

import msgspec

from inferplane.errors import ContextTooLong, InferplaneError, InvalidValue
from inferplane.messages import Request
from inferplane_api.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferplane.client.drivers import EngineDriver
    from inferplane.client.requests import Limits
    from inferplane.messages import Delta
    from inferplane.plan.types import Plan
    from inferplane.text.tokenizer import Tokenizer
    from inferplane_api.pooling import PoolingParams

_NO_SAMPLING = SamplingParams(temperature=0.0, max_tokens=0, detokenize=False)

WHOLE_CONTEXT = -1
"""As truncate_prompt_tokens: as many tokens as the model takes."""


def generates(plan: Plan) -> InferplaneError:
    """The error of a prompt to embed for a model that generates."""
    return InferplaneError(
        f"this {plan.model.model_type} model generates text and was not started to embed",
        code="task.embed",
        remedy="start it with --runner pooling (in Python: runner='pooling')",
    )


def embeds(plan: Plan) -> InferplaneError:
    """The error of a prompt to complete for a model that embeds."""
    remedy = "ask for embeddings"
    if any(layer.kind != "encoder" for layer in plan.model.layers):
        remedy += ", or start it with --runner generate (in Python: runner='generate')"
    return InferplaneError(
        f"this {plan.model.model_type} model embeds and generates no text", code="task.generate", remedy=remedy
    )


def pooling_params(plan: Plan, dimensions: int | None = None, normalize: bool | None = None) -> PoolingParams:
    """The model's own way to pool, with what the client asks for. Raises InvalidValue, or InferplaneError for a model
    that generates."""
    pooler = plan.pooler
    if pooler is None:
        raise generates(plan)
    if dimensions is not None:
        _check_dimensions(plan, dimensions, pooler.dimensions or plan.model.hidden_size)
        pooler = msgspec.structs.replace(pooler, dimensions=dimensions)
    return pooler if normalize is None else msgspec.structs.replace(pooler, normalize=normalize)


def _check_dimensions(plan: Plan, dimensions: int, most: int) -> None:
    if plan.matryoshka is None:
        raise InvalidValue(
            "dimensions",
            dimensions,
            f"this model gives {most} dimensions and was not trained for fewer (Matryoshka representation)",
            remedy="leave it out",
        )
    if plan.matryoshka and dimensions not in plan.matryoshka:
        raise InvalidValue("dimensions", dimensions, f"must be one of {', '.join(map(str, plan.matryoshka))}")
    if not 1 <= dimensions <= most:
        raise InvalidValue("dimensions", dimensions, f"must be between 1 and {most}")


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], plan: Plan, *, truncate: int | None, special: bool = True
) -> list[list[int]]:
    """Token ids of texts as the model reads them; `truncate`: most tokens of each, special ones included."""
    if plan.lower_case:
        texts = [text.lower() for text in texts]
    if truncate is None:
        return tokenizer.encode_batch(texts, add_special_tokens=special)
    return tokenizer.encode_truncated(texts, truncate, add_special_tokens=special)


def build_pooling_request(
    prompt_token_ids: Sequence[int],
    pooling: PoolingParams,
    limits: Limits,
    *,
    client_id: str,
    request_id: str,
    priority: int = 0,
    cache_salt: str = "",
    field: str = "prompt",
) -> Request:
    """A request whose prompt is pooled. Raises ContextTooLong naming both numbers, or InvalidValue naming `field`."""
    prompt = list(prompt_token_ids)
    if not prompt:
        raise InvalidValue(field, prompt, "must hold at least one token")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= limits.vocab_size:
        known = f"token ids of this model are 0 to {limits.vocab_size - 1}"
        raise InvalidValue(field, low if low < 0 else high, known)
    if len(prompt) > limits.max_model_len:
        raise ContextTooLong(
            field,
            len(prompt),
            f"the prompt is too long: it has {len(prompt)} tokens, and this model's maximum context length is "
            f"{limits.max_model_len} tokens",
            remedy="shorten it, or set truncate_prompt_tokens (-1: to what fits)",
        )
    if priority != 0 and not limits.priorities:
        raise InvalidValue(
            "priority",
            priority,
            "this server schedules first come, first served",
            remedy="leave priority out, or start the server with --scheduling-policy priority",
        )
    return Request(
        client_id=client_id,
        request_id=request_id,
        prompt_token_ids=prompt,
        params=_NO_SAMPLING,
        seed=0,
        pooling=pooling,
        priority=priority,
        cache_salt=cache_salt,
        arrival=time.time(),
    )


def vector_of(packed: bytes) -> list[float]:
    """The numbers of `Delta.pooled`."""
    values = array("f", packed)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


class EmbeddingOutput(msgspec.Struct, kw_only=True):
    """A prompt's vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Number of elements."""
        return len(self.embedding)


class EmbeddingRequestOutput(msgspec.Struct, kw_only=True):
    """One prompt and its vector."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    finished: bool = False
    num_cached_tokens: int = 0


class EmbeddingJob:
    """One prompt of `LLM.embed` on its way."""

    def __init__(self, text: str | None, request: Request) -> None:
        self.request = request
        self.output = EmbeddingRequestOutput(
            request_id=request.request_id,
            prompt=text,
            prompt_token_ids=request.prompt_token_ids,
            outputs=EmbeddingOutput(embedding=[]),
        )

    def push(self, delta: Delta) -> None:
        """Take a delta in. Raises InferplaneError when the engine gave the request up."""
        if delta.error is not None:
            raise InferplaneError(f"request {delta.request_id}: {delta.error}", code="request.failed")
        if delta.num_cached_tokens is not None:
            self.output.num_cached_tokens = delta.num_cached_tokens
        if delta.pooled is not None:
            self.output.outputs = EmbeddingOutput(embedding=vector_of(delta.pooled))
        self.output.finished = self.output.finished or delta.finish_reason is not None


def run_jobs(driver: EngineDriver, jobs: Sequence[EmbeddingJob], finished: Callable[[], None]) -> None:
    """Run all of them; `finished` is called for each that ends. Raises what ends one of them, and aborts the rest."""
    waiting = {job.request.request_id: job for job in jobs}
    for job in jobs:
        driver.submit(job.request)
    try:
        while waiting:
            for delta in driver.poll():
                found = waiting.get(delta.request_id)
                if found is None:
                    continue
                found.push(delta)
                if found.output.finished:
                    del waiting[delta.request_id]
                    finished()
    finally:
        if waiting:
            driver.abort(list(waiting))
