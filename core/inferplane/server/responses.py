"""The bodies of answers, in the order of their fields on the wire; built once a request (streams: see `sse`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Part of Usage."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request consumed, in tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How long a request with one sequence took, as vLLM tells it: milliseconds, None where nothing was measured."""

    time_to_first_token_ms: float | None
    """Scheduled to first token."""
    generation_time_ms: float | None
    """First to last token."""
    queue_time_ms: float | None
    mean_itl_ms: float | None
    tokens_per_second: float | None
    """From the moment when it was scheduled."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position of a chat answer."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct, frozen=True):
    """One position of a chat answer."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """All positions of a chat answer, or of a chunk of it."""

    content: list[ChatLogprob]


class CompletionLogprobs(msgspec.Struct):
    """Four parallel columns; a position without a predecessor (first echoed token) has None."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


PromptLogprobs = list[dict[str, dict[str, Any]] | None]
"""Per prompt position, token id to {logprob, rank, decoded_token}; the first is None."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a chat choice."""

    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: Usage
    metrics: RequestMetrics | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: Usage
    metrics: RequestMetrics | UnsetType | None = UNSET
