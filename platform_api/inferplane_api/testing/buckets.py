"""Pads inputs up to the sizes that a static-shape device takes; knows shapes and no op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.spec import SchedulingConstraints


def bucket_for(size: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `size`; `size` itself without buckets, None when all are too small."""
    if not buckets:
        return size
    return next((bucket for bucket in buckets if bucket >= size), None)


def pad_rows(x: torch.Tensor, size: int, fill: float = 0.0) -> torch.Tensor:
    """x [n, ...] gives [size, ...]; x itself when it has that many rows."""
    if x.shape[0] == size:
        return x
    padding = torch.full((size - x.shape[0], *x.shape[1:]), fill, dtype=x.dtype, device=x.device)
    return torch.cat((x, padding))


def most_rows(scheduling: SchedulingConstraints) -> int:
    """Requests that may stand in one step."""
    limits = [*scheduling.batch_buckets[-1:], *filter(None, [scheduling.max_sequences])]
    return min(limits, default=10**6)


def most_tokens(scheduling: SchedulingConstraints) -> int:
    """Tokens that may stand in one step."""
    limits = [*scheduling.token_buckets[-1:], *filter(None, [scheduling.max_batched_tokens])]
    return min(limits, default=10**6)
