"""The bodies of requests, checked field by field: types, ranges and the rules that need no model.

Numbers are strict (`"1"` is no number); a field that is not listed is kept in `model_extra` and ignored by the routes.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator

from inferplane_api.sampling import MAX_LOGPROB_TOKEN_IDS, MAX_PATTERN_SIZE, LogprobsMode

MAX_SEQUENCES = 16384
"""Most prompts times n of a request."""
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
"""Characters of one."""
MAX_MESSAGES = 16384
MAX_LOGIT_BIAS = 16384
MAX_CACHE_SALT = 128
MAX_BAD_WORDS = 256
MAX_BAD_WORD = 256
"""Characters."""
MAX_XARGS = 64
MAX_REQUEST_ID = 128
_SALT_REFUSES = "@/\\\0"

_TEXT, _NOTHING = {"type": "string"}, {"type": "null"}
_TEXTS = {"type": "array", "items": _TEXT}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {"anyOf": [_TEXT, {**_TEXTS, "minItems": 1}, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
_STOP_SCHEMA = {"anyOf": [_TEXT, {**_TEXTS, "maxItems": MAX_STOP_STRINGS}, _NOTHING], "default": None}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
}
_CONTENT_SCHEMA = {"anyOf": [_TEXT, {"type": "array", "items": _PART}, _NOTHING], "default": None}
"""What the validators below check, for the API's document."""

Int = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Prompt = str | list[int]


class Body(BaseModel):
    """What every request body has in common."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


def _stop(value: Any) -> tuple[str, ...]:
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
        raise ValueError("must be a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"at most {MAX_STOP_STRINGS} stop strings are taken")
    if any(len(string) > MAX_STOP_LENGTH for string in strings):
        raise ValueError(f"a stop string may have {MAX_STOP_LENGTH} characters")
    return tuple(strings)


def _logit_bias(value: dict[str, float] | None) -> dict[str, float] | None:
    if value is None:
        return None
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"at most {MAX_LOGIT_BIAS} tokens can have a bias")
    bad = [key for key in value if not _is_id(key)]
    if bad:
        shown = ", ".join(repr(key[:32]) for key in bad[:10])
        raise ValueError(f"keys must be token ids, these are not: {shown}")
    if not all(math.isfinite(bias) for bias in value.values()):
        raise ValueError("a bias must be a finite number")
    return value


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 12


def _prompts(value: Any) -> list[Prompt] | None:
    """A string, a list of strings, a list of ids or a list of lists of ids, as a list of prompts; None: missing."""
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_ids(value):
            return [value]
        if len(value) > MAX_SEQUENCES:
            raise ValueError(f"a request may have at most {MAX_SEQUENCES} prompts")
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) and item and _are_ids(item) for item in value):
            return value
    raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists; not empty")


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


def _cache_salt(value: str | None) -> str | None:
    if value is None:
        return None
    if not value or len(value) > MAX_CACHE_SALT or any(char in value for char in _SALT_REFUSES):
        raise ValueError(f"must have 1 to {MAX_CACHE_SALT} characters, none of them '@', '/', '\\' or NUL")
    return value


def _early_stopping(value: Any) -> bool | str | None:
    if value is not None and not isinstance(value, bool) and value != "never":
        raise ValueError('must be true, false or "never"')
    return value  # type: ignore[no-any-return]


def _request_id(value: str | None) -> str | None:
    if value is not None and not (0 < len(value) <= MAX_REQUEST_ID and value.isprintable()):
        raise ValueError(f"must have 1 to {MAX_REQUEST_ID} printable characters")
    return value


EarlyStopping = Annotated[Any, AfterValidator(_early_stopping), WithJsonSchema({"enum": [True, False, "never", None]})]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD)]
Prompts = Annotated[Any, AfterValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
RequestId = Annotated[str | None, AfterValidator(_request_id)]
CacheSalt = Annotated[str | None, AfterValidator(_cache_salt)]


class StreamOptions(Body):
    """What a stream says about usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RepetitionDetectionBody(Body):
    """When a loop ends a request; a max_pattern_size of 0 asks for nothing, and 0 elsewhere for the least."""

    max_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_SIZE)] = 0
    min_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_SIZE)] = 0
    min_count: Annotated[int, Field(ge=0, le=MAX_PATTERN_SIZE)] = 0


class GenerationBody(Body):
    """The fields that both generation endpoints take."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "best_of": (1,),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "response_format": ({"type": "text"},),
        "logits_processors": ([],),
        "thinking_token_budget": (-1,),
        "kv_transfer_params": ({},),
    }
    """Fields of features that are not there yet, with the values (None besides) that ask for nothing."""

    model: str | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    n: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Annotated[Any, AfterValidator(_stop), WithJsonSchema(_STOP_SCHEMA)] = ()
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[str, float] | None, AfterValidator(_logit_bias)] = None
    allowed_token_ids: list[Int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: Int | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31)] | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Int | None = None
    request_id: RequestId = None
    cache_salt: CacheSalt = None
    user: str | None = None

    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    logprob_token_ids: Annotated[list[Int], Field(max_length=MAX_LOGPROB_TOKEN_IDS)] | None = None
    logprobs_mode: LogprobsMode | None = None
    repetition_detection: RepetitionDetectionBody | None = None
    stream_interval: Annotated[int, Field(ge=1, le=2**31)] | None = None
    vllm_xargs: Annotated[dict[str, Any], Field(max_length=MAX_XARGS)] | None = None

    best_of: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    response_format: Any = None
    logits_processors: Any = None
    thinking_token_budget: Any = None
    kv_transfer_params: Any = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {**GenerationBody.neutral, "suffix": (), "prompt_embeds": ()}

    prompt: Prompts = None
    logprobs: Int | None = None
    suffix: Any = None
    prompt_embeds: Any = None


def _content(value: Any) -> Any:
    """A message's content: text, nothing, or parts of which only text is taken yet."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of parts")
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"part {index} must be an object with a type")
        if part["type"] != "text":
            raise ValueError(f"part {index}: type {part['type'][:32]!r} is not supported yet, only 'text' is")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"part {index}: text must be a string")
    return value


class Message(Body):
    """One message of a conversation; what else it holds goes to the template as it is."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[Any, AfterValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)] = None


class Conversation(Body):
    """The fields that turn messages into a prompt."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None

    @field_validator("continue_final_message")
    @classmethod
    def _one_ending(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        """Of a field, not of the whole body: the answer names it. add_generation_prompt stands before it."""
        if value and info.data.get("add_generation_prompt"):
            raise ValueError("cannot be true together with add_generation_prompt=true")
        return value


class ChatBody(Conversation, GenerationBody):
    """POST /v1/chat/completions."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationBody.neutral,
        "tools": (),
        "tool_choice": ("none",),
        "functions": (),
        "function_call": ("none",),
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "web_search_options": (),
    }

    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    # Accepted and without effect here: bookkeeping of other services, and features that nothing asks for by default.
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    parallel_tool_calls: Any = None
    include_reasoning: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    verbosity: Any = None
    mm_processor_kwargs: Any = None


class TokenizeBody(Body):
    """POST /tokenize with a prompt."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class TokenizeChatBody(Conversation):
    """POST /tokenize with messages."""

    model: str | None = None
    add_special_tokens: bool = False
    return_token_strs: bool | None = None
    tools: Any = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Int]
