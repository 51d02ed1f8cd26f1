"""From a prompt's token ids and sampling parameters to engine requests; the last place where a value is refused."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from inferplane.errors import ContextTooLong, InvalidValue
from inferplane.messages import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from inferplane_api.sampling import LogprobsMode, SamplingParams

_MASK = 2**64 - 1


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model and an engine allow; requests are validated against it at the edge."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    max_logprobs: int = 20
    """-1: no limit."""
    priorities: bool = False
    """True under the policy "priority"."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """Of requests that name none."""


class RequestSeeds:
    """Seeds for requests that bring none: a function of the user's seed and of how many were drawn before."""

    def __init__(self, seed: int, process: int = 0) -> None:
        """process: of several front ends, which draw different ones."""
        self._seed = derive_seed(seed, 1 + process)
        self._num_drawn = 0

    def __call__(self) -> int:
        """The next one, 64 bits."""
        self._num_drawn += 1
        return derive_seed(self._seed, self._num_drawn)


def _system_seed() -> int:
    return secrets.randbits(64)


def build_requests(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    limits: Limits,
    *,
    client_id: str,
    request_id: str,
    priority: int = 0,
    cache_salt: str = "",
    arrival: float | None = None,
    draw_seed: Callable[[], int] = _system_seed,
) -> list[Request]:
    """One request a sequence: n of them, with distinct seeds, max_tokens resolved.

    The first computes and scores the prompt; the others follow it and find the prompt in the cache.

    Raises ContextTooLong naming both numbers, or InvalidValue naming the field.
    """
    prompt = list(prompt_token_ids)
    _check_prompt(prompt, limits)
    _check_token_fields(params, limits)
    if priority != 0 and not limits.priorities:
        raise InvalidValue(
            "priority",
            priority,
            "this server schedules first come, first served",
            remedy="leave priority out, or start the server with --scheduling-policy priority",
        )
    max_tokens = _resolve_max_tokens(len(prompt), params, limits)
    seed = draw_seed() if params.seed is None else params.seed
    logprobs = params.logprobs
    if params.logprob_token_ids and logprobs is None:
        logprobs = 0
    resolved = msgspec.structs.replace(
        params,
        n=1,
        max_tokens=max_tokens,
        min_tokens=min(params.min_tokens, max_tokens),
        seed=None,
        logprobs=logprobs,
        logprobs_mode=params.logprobs_mode or limits.logprobs_mode,
    )
    following = msgspec.structs.replace(resolved, prompt_logprobs=None)
    now = time.time() if arrival is None else arrival
    return [
        Request(
            client_id=client_id,
            request_id=request_id if params.n == 1 else f"{request_id}-{index}",
            prompt_token_ids=prompt,
            params=resolved if index == 0 else following,
            seed=derive_seed(seed, index),
            eos_token_ids=() if params.ignore_eos else limits.eos_token_ids,
            priority=priority,
            cache_salt=cache_salt,
            arrival=now,
            follows="" if index == 0 else f"{request_id}-0",
        )
        for index in range(params.n)
    ]


def derive_seed(seed: int, index: int) -> int:
    """A distinct 64-bit seed for each of a request's n sequences; the first keeps the request's own.

    SplitMix64 (Steele, Lea, Flood 2014) over the index.
    """
    if index == 0:
        return seed & _MASK
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _check_prompt(prompt: list[int], limits: Limits) -> None:
    if not prompt:
        raise InvalidValue("prompt", prompt, "must hold at least one token")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= limits.vocab_size:
        raise InvalidValue(
            "prompt", low if low < 0 else high, f"token ids of this model are 0 to {limits.vocab_size - 1}"
        )


def _resolve_max_tokens(num_prompt: int, params: SamplingParams, limits: Limits) -> int:
    room = limits.max_model_len - num_prompt
    if params.max_tokens == 0:
        if params.prompt_logprobs is None:
            raise InvalidValue("max_tokens", 0, "must be at least 1", remedy="0 is for scoring, with prompt_logprobs")
        if room < 0:
            raise _too_long(num_prompt, 0, limits)
        return 0
    wanted = params.max_tokens
    if room < 1 or (wanted is not None and wanted > room):
        raise _too_long(num_prompt, wanted, limits)
    return room if wanted is None else wanted


def _too_long(num_prompt: int, max_tokens: int | None, limits: Limits) -> ContextTooLong:
    """Clients tell this failure from others by "prompt is too long" and "this model's maximum context length is"."""
    most = f"this model's maximum context length is {limits.max_model_len} tokens, with what is generated"
    remedy = "shorten the prompt or lower max_tokens"
    if max_tokens is None or num_prompt >= limits.max_model_len:
        problem = f"the prompt is too long: it has {num_prompt} tokens, and {most}"
        return ContextTooLong("prompt", num_prompt, problem, remedy=remedy)
    problem = f"the prompt has {num_prompt} tokens and max_tokens={max_tokens}, and {most}"
    return ContextTooLong("max_tokens", max_tokens, problem, remedy=remedy)


def _check_something_is_left(params: SamplingParams, limits: Limits) -> None:
    """Until min_tokens tokens came, those that end the answer cannot be drawn: others must be allowed."""
    if params.allowed_token_ids is None:
        return
    banned = {sequence[0] for sequence in params.bad_words_token_ids if len(sequence) == 1}
    if banned.issuperset(params.allowed_token_ids):
        raise InvalidValue("allowed_token_ids", params.allowed_token_ids[:20], "bad_words exclude all of them")
    if params.min_tokens == 0:
        return
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else limits.eos_token_ids)}
    if ends.issuperset(params.allowed_token_ids):
        raise InvalidValue(
            "allowed_token_ids",
            params.allowed_token_ids[:20],
            f"all of them end the answer, and min_tokens={params.min_tokens} forbids that at first",
            remedy="allow another token, or leave min_tokens out",
        )


def _check_token_fields(params: SamplingParams, limits: Limits) -> None:
    def check(field: str, ids: Iterable[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < limits.vocab_size:
                raise InvalidValue(field, token_id, f"token ids of this model are 0 to {limits.vocab_size - 1}")

    check("logit_bias", params.logit_bias or ())
    check("allowed_token_ids", params.allowed_token_ids or ())
    check("stop_token_ids", params.stop_token_ids)
    check("logprob_token_ids", params.logprob_token_ids or ())
    _check_something_is_left(params, limits)
    if limits.max_logprobs < 0:
        return
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(params, field)
        if value is not None and (value > limits.max_logprobs or value == -1):
            raise InvalidValue(
                field,
                value,
                f"at most {limits.max_logprobs} log-probabilities are given",
                remedy="ask for fewer, or start the server with a larger --max-logprobs",
            )
