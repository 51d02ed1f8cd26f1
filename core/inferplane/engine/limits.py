"""How much a step may hold: the user's limits and the device's constraints, merged once. Knows no requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferplane.plan.types import Plan


class StepLimits(NamedTuple):
    """What the scheduler may put into one step."""

    max_model_len: int
    """Longest context of a request, in tokens."""
    max_sequences: int
    """Most rows of a step, and slots."""
    max_tokens: int
    """Most tokens of a step."""
    max_chunk: int
    """Longest prompt chunk of one request in a step; never above max_tokens."""
    max_partial_prefills: int = 1
    """Most requests whose prompt is computed in part."""
    mixed_steps: bool = True
    """False: a step holds either single-token rows or longer chunks."""
    chunking: bool = True
    """False: a prompt is scheduled whole or waits."""
    by_priority: bool = False
    by_share: bool = False
    """True: who used least goes first."""


def step_limits(plan: Plan, max_model_len: int) -> StepLimits:
    """The tightest of what the user, the device and the model ask for; the largest bucket is an upper bound."""
    device = plan.scheduling
    tokens = _least(
        plan.limits.max_num_batched_tokens, device.max_batched_tokens, max(device.token_buckets, default=None)
    )
    sequences = _least(plan.limits.max_num_seqs, device.max_sequences, max(device.batch_buckets, default=None))
    chunking = "no_chunking" not in plan.model.features
    threshold = plan.long_prefill_token_threshold if chunking else 0
    return StepLimits(
        max_model_len=max_model_len,
        # Every running request must find room in a step.
        max_sequences=min(sequences, tokens),
        max_tokens=tokens,
        max_chunk=_least(tokens, device.max_chunk, threshold or None),
        max_partial_prefills=plan.max_num_partial_prefills,
        mixed_steps=device.mixed_steps,
        chunking=chunking,
        by_priority=plan.policy == "priority",
        by_share=plan.policy == "fair",
    )


def _least(first: int, *others: int | None) -> int:
    return min([first, *(other for other in others if other is not None)])
