"""The per-request sampling parameters; knows their ranges, not how they are applied."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from inferplane_api.errors import InvalidValue

GREEDY_EPSILON = 1e-5
"""A temperature below this is greedy."""

MIN_TEMPERATURE = 1e-2
"""A temperature between GREEDY_EPSILON and this is raised to it: below, float32 logits overflow."""

MAX_SEED = 2**64 - 1

MAX_LOGPROB_TOKEN_IDS = 128
MAX_PATTERN_SIZE = 1024
"""Of repetition_detection: bounds what is looked at for each token."""

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
LOGPROBS_MODES: tuple[LogprobsMode, ...] = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
"""What is reported as log-probabilities: of the model's own logits, or of what the token was drawn from."""

_MAX_REPETITION_PENALTY = 1e4
"""Beyond this factor, or below its inverse, float32 logits overflow at a low temperature, and nothing can be drawn."""


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True):
    """Ends a request whose output ends in one pattern of tokens, repeated. Raises InvalidValue on construction."""

    max_pattern_size: int
    """Longest pattern that is looked for, in tokens."""
    min_pattern_size: int = 1
    min_count: int = 2
    """Times that the pattern must stand at the end, one after the other."""

    def __post_init__(self) -> None:
        for name, low in (("max_pattern_size", 1), ("min_pattern_size", 1), ("min_count", 2)):
            value = getattr(self, name)
            field = f"repetition_detection.{name}"
            _require(low <= value <= MAX_PATTERN_SIZE, field, value, f"must be between {low} and {MAX_PATTERN_SIZE}")
        _require(
            self.min_pattern_size <= self.max_pattern_size,
            "repetition_detection.min_pattern_size",
            self.min_pattern_size,
            f"must not exceed max_pattern_size={self.max_pattern_size}",
        )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request turns logits into tokens. Names, ranges and defaults follow vLLM and OpenAI.

    Order of application: logit_bias, token masks and bad words, penalties, logits processors, temperature, min_p,
    top_k, top_p. `logprobs` are of the raw logits (before any of these) unless `logprobs_mode` says otherwise. Raises
    InvalidValue on construction and on decoding, so that an invalid value is found at the edge.
    """

    n: int = 1
    temperature: float = 1.0
    """0 is greedy. Values in (1e-5, 0.01) are raised to 0.01."""
    top_p: float = 1.0
    """(0, 1]."""
    top_k: int = 0
    """0 and -1 mean all tokens."""
    min_p: float = 0.0
    """[0, 1], relative to the most likely token."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None: the front end draws one. The noise is a function of (seed, output position, token id)."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    """Stop ids, EOS and stop strings are held off until this many tokens were generated."""
    max_tokens: int | None = 16
    """None: the rest of the context. 0 is allowed with prompt_logprobs (scoring)."""
    logprobs: int | None = None
    """Number of most likely tokens to report beside the sampled one; 0 reports the sampled one, -1 all."""
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    """Tokens whose log-probabilities are reported too, at most 128; implies `logprobs` 0."""
    logprobs_mode: LogprobsMode | None = None
    """None: the engine's. In a *_logits mode, logits stand where log-probabilities would."""
    logit_bias: dict[int, float] | None = None
    """Token id to bias, clamped to [-100, 100]."""
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    """Never generated, at the beginning of a word or within one. Needs a tokenizer: the front end turns them into
    `bad_words_token_ids`."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences whose last token cannot be drawn when the output ends in the others."""
    repetition_detection: RepetitionDetection | None = None
    extra_args: dict[str, Any] | None = None
    """Parameters of logits processors, by name (`vllm_xargs` over HTTP)."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        finite = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
        for name in finite:
            if not math.isfinite(getattr(self, name)):
                raise InvalidValue(name, getattr(self, name), "must be a finite number")
        _require(self.n >= 1, "n", self.n, "must be at least 1")
        _require(0.0 <= self.temperature <= 2.0, "temperature", self.temperature, "must be between 0 and 2")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "must be in (0, 1]")
        _require(self.top_k >= -1, "top_k", self.top_k, "must be -1 or 0 (all tokens) or a positive number")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "must be between 0 and 1")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2.0 <= value <= 2.0, name, value, "must be between -2 and 2")
        _require(
            1.0 / _MAX_REPETITION_PENALTY <= self.repetition_penalty <= _MAX_REPETITION_PENALTY,
            "repetition_penalty",
            self.repetition_penalty,
            f"must be above 0, and between {1.0 / _MAX_REPETITION_PENALTY:g} and {_MAX_REPETITION_PENALTY:g}",
        )
        for token_id, bias in (self.logit_bias or {}).items():
            _require(not math.isnan(bias), "logit_bias", {token_id: bias}, "a bias must be a number")
        _require(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", self.seed, "must be between 0 and 2**64 - 1")
        _require(all(self.stop), "stop", self.stop, "a stop string must not be empty")
        _require(
            all(t >= 0 for t in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "ids are not negative"
        )
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "must not be negative")
        _require(self.max_tokens is None or self.max_tokens >= 0, "max_tokens", self.max_tokens, "must not be negative")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"must not exceed max_tokens={self.max_tokens}",
        )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(value is None or value >= -1, name, value, "must be -1 (all) or not negative")
        self._check_lists()
        _require(
            self.n == 1 or not self.greedy, "n", self.n, "greedy sampling (temperature 0) gives one answer: use n=1"
        )
        _require(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids",
            self.allowed_token_ids,
            "must not be empty",
        )

    def _check_lists(self) -> None:
        _require(all(word.strip() for word in self.bad_words), "bad_words", self.bad_words, "a word must not be empty")
        _require(
            all(sequence and min(sequence) >= 0 for sequence in self.bad_words_token_ids),
            "bad_words_token_ids",
            self.bad_words_token_ids,
            "a sequence must hold at least one id, none of them negative",
        )
        ids = self.logprob_token_ids or ()
        _require(
            len(ids) <= MAX_LOGPROB_TOKEN_IDS,
            "logprob_token_ids",
            f"{len(ids)} ids",
            f"must hold at most {MAX_LOGPROB_TOKEN_IDS} ids",
        )
        _require(all(i >= 0 for i in ids), "logprob_token_ids", ids, "ids are not negative")
        _require(
            self.logprobs_mode is None or self.logprobs_mode in LOGPROBS_MODES,
            "logprobs_mode",
            self.logprobs_mode,
            f"must be one of {', '.join(LOGPROBS_MODES)}",
        )

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken and top_k, top_p, min_p and seed do nothing."""
        return self.temperature < GREEDY_EPSILON

    @property
    def effective_temperature(self) -> float:
        """The temperature that divides the logits of a non-greedy request."""
        return max(self.temperature, MIN_TEMPERATURE)

    @property
    def has_penalties(self) -> bool:
        """True where earlier tokens change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


def _require(condition: bool, field: str, value: object, problem: str) -> None:
    if not condition:
        raise InvalidValue(field, value, problem)
