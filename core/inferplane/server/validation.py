"""The rules between fields, and the way from a body to sampling values; knows no tokenizer and no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplane.client.beam_search import REFUSED, BeamSearchParams
from inferplane.server.errors import ApiError, bad_value, not_supported
from inferplane.server.schema import MAX_SEQUENCES
from inferplane_api.sampling import RepetitionDetection, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inferplane.server.schema import ChatBody, CompletionBody, GenerationBody

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "n",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
_SEED_RANGE = 2**64
_HTTP_NAMES = {"extra_args": "vllm_xargs"}
_BEAM_FIELDS = frozenset(BeamSearchParams.__struct_fields__) & frozenset(SamplingParams.__struct_fields__)


def check_body(body: GenerationBody, num_prompts: int) -> None:
    """The rules that both generation endpoints share. Raises ApiError 400 naming the field."""
    for field, values in body.neutral.items():
        value = getattr(body, field)
        if value is not None and value not in values:
            raise not_supported(field)
    if body.stream_options is not None and not body.stream:
        raise bad_value("stream_options", "is only allowed together with stream=true")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_value("prompt_logprobs", "is not available together with stream=true")
    n = 1 if body.n is None else body.n
    if n * num_prompts > MAX_SEQUENCES:
        raise bad_value("n", f"a request may have at most {MAX_SEQUENCES} sequences, this one has {n * num_prompts}")


def sampling_values(body: CompletionBody | ChatBody, vocab_size: int) -> dict[str, Any]:
    """The sampling fields that the client has set, named as in SamplingParams; max_tokens and logprobs are not here."""
    values = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        values["top_k"] = min(body.top_k, vocab_size)
    if body.seed is not None and body.seed != -1:
        values["seed"] = body.seed % _SEED_RANGE
    if body.stop:
        values["stop"] = body.stop
    if body.stop_token_ids:
        values["stop_token_ids"] = tuple(body.stop_token_ids)
    if body.logit_bias:
        values["logit_bias"] = {int(key): max(-100.0, min(100.0, bias)) for key, bias in body.logit_bias.items()}
    if body.allowed_token_ids is not None:
        values["allowed_token_ids"] = tuple(body.allowed_token_ids)
    if body.prompt_logprobs is not None:
        values["prompt_logprobs"] = body.prompt_logprobs
    values |= _later_values(body)
    return values


def _later_values(body: CompletionBody | ChatBody) -> dict[str, Any]:
    """What vLLM added to OpenAI's fields over time."""
    values: dict[str, Any] = {}
    if body.bad_words:
        values["bad_words"] = tuple(body.bad_words)
    if body.logprob_token_ids:
        if body.logprobs is None or body.logprobs is False:
            raise bad_value("logprob_token_ids", "needs logprobs")
        values["logprob_token_ids"] = tuple(body.logprob_token_ids)
    if body.logprobs_mode is not None:
        values["logprobs_mode"] = body.logprobs_mode
    if body.vllm_xargs:
        values["extra_args"] = body.vllm_xargs
    detection = body.repetition_detection
    if detection is not None and detection.max_pattern_size:
        values["repetition_detection"] = RepetitionDetection(
            max_pattern_size=detection.max_pattern_size,
            min_pattern_size=max(1, detection.min_pattern_size),
            min_count=max(2, detection.min_count),
        )
    return values


def beam_search_params(body: GenerationBody, values: Mapping[str, Any]) -> BeamSearchParams | None:
    """How to search, from the fields of `SamplingParams` that hold for the request; None where nobody asks for beams.

    temperature, top_p, top_k, min_p and seed have no meaning then. Raises ApiError or InvalidValue naming the field.
    """
    if not body.use_beam_search:
        for field, asked in (
            ("length_penalty", body.length_penalty not in (None, 1.0)),
            ("early_stopping", bool(body.early_stopping)),
        ):
            if asked:
                raise bad_value(field, "needs use_beam_search=true")
        return None
    if body.stream:
        raise bad_value("stream", "is not available together with use_beam_search=true: beams end together")
    for field in REFUSED:
        if values.get(field):
            raise bad_value(_HTTP_NAMES.get(field, field), "is not available together with use_beam_search=true")
    if values.get("logprobs_mode", "processed_logprobs").endswith("logits"):
        raise bad_value("logprobs_mode", "beams are ranked by log-probabilities, which are what is reported")
    taken = {name: value for name, value in values.items() if name in _BEAM_FIELDS}
    if body.length_penalty is not None:
        taken["length_penalty"] = body.length_penalty
    if body.early_stopping is not None:
        taken["early_stopping"] = body.early_stopping
    return BeamSearchParams(beam_width=1 if body.n is None else body.n, **taken)


def completion_values(body: CompletionBody, vocab_size: int) -> dict[str, Any]:
    """`sampling_values` with the rules of completions: logprobs is a number, and echo scores the prompt too."""
    values = sampling_values(body, vocab_size)
    if body.max_tokens is not None:
        values["max_tokens"] = body.max_tokens
    if body.logprobs is not None:
        values["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None:
        values["prompt_logprobs"] = _more(body.logprobs, body.prompt_logprobs)
    elif body.echo and body.max_tokens == 0:
        # Nothing is generated: the engine only has to accept the request.
        values.setdefault("prompt_logprobs", 0)
    return values


def _more(one: int, other: int | None) -> int:
    if other is None:
        return one
    return -1 if -1 in (one, other) else max(one, other)


def chat_values(body: ChatBody, vocab_size: int) -> dict[str, Any]:
    """`sampling_values` with the rules of chat: logprobs is a switch, max_completion_tokens wins."""
    values = sampling_values(body, vocab_size)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit is not None:
        values["max_tokens"] = limit
    if body.top_logprobs and not body.logprobs:
        raise bad_value("top_logprobs", "needs logprobs=true")
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return values


COMPLETION_FIELD_NAMES = {"beam_width": "n"}
"""The same for completions."""


def chat_field_names(body: ChatBody) -> dict[str, str]:
    """SamplingParams' field names to those that a chat client used, for error messages."""
    logprobs = "top_logprobs" if body.top_logprobs else "logprobs"
    names = {**COMPLETION_FIELD_NAMES, "prompt": "messages", "logprobs": logprobs}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


def check_model(name: str | None, served: tuple[str, ...]) -> str:
    """The name under which the answer goes out. Raises ApiError 404 for a model that is not served."""
    if name is None:
        return served[0]
    if name not in served:
        shown = name if len(name) <= 200 else name[:200] + "…"
        raise ApiError(
            404,
            f"the model {shown!r} does not exist here; served: {', '.join(served)}",
            code="model_not_found",
            param="model",
        )
    return name
