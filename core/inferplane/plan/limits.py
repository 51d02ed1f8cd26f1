"""Sizes that a runner prepares for: the user's, the defaults, and what the device and the model allow."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inferplane.errors import InvalidValue
from inferplane.plan.settings import Settings
from inferplane.plan.types import Decision
from inferplane_api.model import ModelSpec
from inferplane_api.runner import RunnerLimits
from inferplane_api.spec import SchedulingConstraints

MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 2048
CACHING = "cache.enable_prefix_caching"


class LimitsChoice(NamedTuple):
    """The limits and their records."""

    limits: RunnerLimits
    auto_max_model_len: bool
    scheduling: SchedulingConstraints
    prefix_caching: bool
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()


def choose_limits(settings: Settings, model: ModelSpec, device: SchedulingConstraints) -> LimitsChoice:
    """Raises InvalidValue when the user asks for more than the model or the device allows, naming both."""
    max_model_len, automatic = _max_model_len(settings, model)
    tokens = _batched_tokens(settings, model, device, max_model_len)
    if "no_chunking" in model.features:
        max_model_len = _whole_prompts(max_model_len, min(tokens, device.max_chunk or tokens), automatic=automatic)
    sequences = _sequences(settings, device, tokens)
    scheduling = device
    if not settings.value("scheduler.async_scheduling"):
        scheduling = msgspec.structs.replace(device, queue_depth=1)
    prefix_caching, caching = _prefix_caching(settings, model)
    limits = RunnerLimits(
        max_model_len=max_model_len,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        max_logprobs=settings.value("model.max_logprobs"),
    )
    decisions = (
        _decision(
            settings, "model.max_model_len", max_model_len, f"the model's {model.max_position}; may shrink to fit"
        ),
        _decision(
            settings, "scheduler.max_num_seqs", sequences, f"the smaller of {MAX_NUM_SEQS} and the device's most"
        ),
        _decision(
            settings,
            "scheduler.max_num_batched_tokens",
            tokens,
            "long enough for a whole prompt, which this model needs"
            if "no_chunking" in model.features
            else f"the smaller of {MAX_NUM_BATCHED_TOKENS} and the device's most",
        ),
        caching,
    )
    warnings: tuple[str, ...] = ()
    if caching.source == "checkpoint" and settings.insisted(CACHING) and settings.value(CACHING):
        warnings = (f"no prefix caching, although {settings.source(CACHING)} asks for it: {caching.reason}",)
    return LimitsChoice(limits, automatic, scheduling, prefix_caching, decisions, warnings)


def _max_model_len(settings: Settings, model: ModelSpec) -> tuple[int, bool]:
    path = "model.max_model_len"
    asked = settings.value(path)
    if asked is None:
        return model.max_position, True
    if not settings.insisted(path):  # a plugin's default for any model
        return min(int(asked), model.max_position), True
    if asked > model.max_position:
        raise InvalidValue(
            "max_model_len",
            asked,
            f"the model's longest context is {model.max_position} tokens",
            remedy=f"--max-model-len {model.max_position}, or leave it out",
        )
    return int(asked), False


def _batched_tokens(settings: Settings, model: ModelSpec, device: SchedulingConstraints, max_model_len: int) -> int:
    most = _most(device.max_batched_tokens, device.token_buckets)
    asked = settings.value("scheduler.max_num_batched_tokens")
    whole = "no_chunking" in model.features
    if asked is None:
        wanted = max(MAX_NUM_BATCHED_TOKENS, max_model_len) if whole else MAX_NUM_BATCHED_TOKENS
        return wanted if most is None else min(wanted, most)
    _require_at_most("max_num_batched_tokens", asked, most)
    if whole and asked < max_model_len:
        raise InvalidValue(
            "max_num_batched_tokens",
            asked,
            f"this model computes a prompt in one step, and the context is {max_model_len} tokens",
            remedy=f"at least {max_model_len}, or a shorter --max-model-len",
        )
    return int(asked)


def _whole_prompts(max_model_len: int, most: int, *, automatic: bool) -> int:
    """The longest context of a model that computes a prompt in one step, of which the device takes `most` tokens."""
    if max_model_len <= most or automatic:
        return min(max_model_len, most)
    problem = f"this model computes a prompt in one step, and the device takes at most {most} tokens of a prompt in one"
    raise InvalidValue("max_model_len", max_model_len, problem, remedy=f"--max-model-len {most}, or leave it out")


def _sequences(settings: Settings, device: SchedulingConstraints, tokens: int) -> int:
    """Every running request needs a token in a step, so a small step means few requests."""
    most = _most(device.max_sequences, device.batch_buckets)
    asked = settings.value("scheduler.max_num_seqs")
    if asked is None:
        return min(MAX_NUM_SEQS, tokens) if most is None else min(MAX_NUM_SEQS, tokens, most)
    _require_at_most("max_num_seqs", asked, most)
    if asked > tokens:
        remedy = f"--max-num-batched-tokens {asked} or more, or fewer sequences"
        raise InvalidValue("max_num_seqs", asked, f"a step has only {tokens} tokens", remedy=remedy)
    return int(asked)


def _prefix_caching(settings: Settings, model: ModelSpec) -> tuple[bool, Decision]:
    if "no_prefix_cache" in model.features:
        reason = "this model's cache cannot be shared between requests"
        return False, Decision(subject=f"config {CACHING}", chosen="False", source="checkpoint", reason=reason)
    enabled = bool(settings.value(CACHING))
    return enabled, _decision(settings, CACHING, enabled, "the default")


def _most(declared: int | None, buckets: tuple[int, ...]) -> int | None:
    bounds = [bound for bound in (declared, max(buckets, default=None)) if bound is not None]
    return min(bounds, default=None)


def _require_at_most(field: str, asked: int, most: int | None) -> None:
    if most is not None and asked > most:
        raise InvalidValue(field, asked, f"the device takes at most {most}", remedy=f"{most} or less")


def _decision(settings: Settings, path: str, chosen: object, reason: str) -> Decision:
    source = settings.source(path)
    why = settings.reason(path) if source != "automatic" else reason
    return Decision(subject=f"config {path}", chosen=str(chosen), source=source, reason=why)
