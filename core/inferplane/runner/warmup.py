"""The steps that a runner makes before the first request: one, or one for every pair of buckets. Computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.runner.step_shapes import StepShapes
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import NewRequest, StepPlan

if TYPE_CHECKING:
    from inferplane_api.pooling import PoolingParams
    from inferplane_api.runner import RunnerLimits
    from inferplane_api.spec import SchedulingConstraints


def warmup_steps(
    constraints: SchedulingConstraints, limits: RunnerLimits, pooling: PoolingParams | None = None
) -> list[StepPlan]:
    """Steps on the null page that have every shape which a real step can have; each ends the requests of the one before
    it, and the last one, which is empty, the rest. `pooling`: their requests are pooled, and sample nothing."""
    shapes = StepShapes(constraints)
    steps: list[StepPlan] = []
    slots: list[int] = []
    for tokens in constraints.token_buckets or (None,):
        for rows in constraints.batch_buckets or (None,):
            for counts in _candidates(tokens, rows, limits, constraints.mixed_steps):
                size = sum(counts), len(counts)
                if (shapes.tokens(size[0]), shapes.rows(size[1])) == (tokens or size[0], rows or size[1]):
                    steps.append(_step(counts, slots, pooling))
                    slots = steps[-1].slots
                    break
    return [*steps, StepPlan(step_id=-1, removed=slots)]


def _candidates(tokens: int | None, rows: int | None, limits: RunnerLimits, mixed: bool) -> list[list[int]]:
    """Tokens of each row of steps that come close to the buckets."""
    longest = limits.max_model_len
    rows = min(rows or -(-(tokens or 1) // longest), limits.max_num_seqs)
    total = min(tokens or rows, rows * longest, limits.max_num_batched_tokens)
    rows = min(rows, total)
    if mixed or total == rows or total >= 2 * rows:
        return [_split(total, rows)]
    # Single-token rows, or fewer and longer ones.
    pairs = total // 2
    return [_split(rows, rows), _split(min(total, pairs * longest), pairs)]


def _split(total: int, rows: int) -> list[int]:
    base, extra = divmod(total, rows)
    return [base] * (rows - extra) + [base + 1] * extra


def _step(counts: list[int], removed: list[int], pooling: PoolingParams | None) -> StepPlan:
    slots = list(range(len(counts)))
    requests = [
        NewRequest(
            slot=slot,
            request_id=f"warm-up {slot}",
            token_ids=[0] * count,
            num_prompt_tokens=count,
            params=SamplingParams(),
            seed=0,
            pooling=pooling,
        )
        for slot, count in enumerate(counts)
    ]
    return StepPlan(
        step_id=-1, removed=removed, added=requests, slots=slots, starts=[0] * len(slots), counts=counts,
        sample_rows=slots if pooling is None else [],
    )  # fmt: skip
