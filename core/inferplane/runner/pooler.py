"""Hidden states of prompts to vectors, over however many steps a prompt takes; knows no model and samples nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferplane.runner.batch_state import upload

if TYPE_CHECKING:
    from inferplane.runner.batch_state import Step
    from inferplane_api.pooling import PoolingParams
    from inferplane_api.step import NewRequest

_SMALLEST_LENGTH = 1e-12
"""A vector that is shorter is divided by this, as sentence-transformers does."""


class Pooled(NamedTuple):
    """The vectors of one step, on the device."""

    rows: list[int]
    """Of the step."""
    sizes: list[int]
    """Elements of each row's vector; what stands behind them is padding."""
    vectors: torch.Tensor
    """[N, hidden] float32."""


class _Request(NamedTuple):
    params: PoolingParams
    num_prompt: int


class _Row(NamedTuple):
    place: int
    """In the step."""
    slot: int
    first: int
    """The row's tokens are [first, end) of the step's."""
    end: int
    begins: bool
    """Its tokens are the first of the prompt."""
    ends: bool


class Pooler:
    """The pooled requests by slot. What a prompt's earlier chunks gave stays on the device, in float32: the sum of
    their hidden states for MEAN, the first one for CLS.

    A row is summed by itself, in the order of its tokens, so that its neighbours do not change its last bits.
    """

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._carried: dict[int, torch.Tensor] = {}
        """[hidden]."""

    def add(self, request: NewRequest) -> None:
        """A request enters its slot, pooled or not."""
        self.remove(request.slot)
        if request.pooling is not None:
            self._requests[request.slot] = _Request(request.pooling, request.num_prompt_tokens)

    def remove(self, slot: int) -> None:
        """The slot's request left."""
        self._requests.pop(slot, None)
        self._carried.pop(slot, None)

    def pool(self, step: Step, hidden: torch.Tensor) -> Pooled | None:
        """Take a step's hidden states [T, hidden] in; the vectors of the rows that complete their prompt."""
        if not self._requests:
            return None
        taken = [(row, self._take(row, hidden)) for row in self._rows(step)]
        done = [(row, vector) for row, vector in taken if vector is not None]
        if not done:
            return None
        params = [self._requests[row.slot].params for row, _ in done]
        vectors = torch.stack([vector for _, vector in done])
        width = vectors.shape[-1]
        sizes = [min(each.dimensions or width, width) for each in params]
        if min(sizes) < width:
            kept = np.arange(width) < np.array(sizes)[:, None]
            vectors = torch.where(upload(kept, vectors.device), vectors, 0.0)
        if any(each.normalize for each in params):
            lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(_SMALLEST_LENGTH)
            chosen = upload(np.array([[each.normalize] for each in params]), vectors.device)
            vectors = torch.where(chosen, vectors / lengths, vectors)
        return Pooled([row.place for row, _ in done], sizes, vectors)

    def _rows(self, step: Step) -> list[_Row]:
        """The rows of pooled requests."""
        slots, starts, counts = step.slots.tolist(), step.starts.tolist(), step.counts.tolist()
        firsts = step.query_start.tolist()
        return [
            _Row(
                index,
                slot,
                firsts[index],
                firsts[index + 1],
                begins=starts[index] == 0,
                ends=starts[index] + counts[index] >= self._requests[slot].num_prompt,
            )
            for index, slot in enumerate(slots)
            if slot in self._requests
        ]

    def _take(self, row: _Row, hidden: torch.Tensor) -> torch.Tensor | None:
        """The row's pooled vector [hidden], float32, where its prompt is complete; else what to carry on is kept."""
        params, num_prompt = self._requests[row.slot]
        if params.pooling_type == "LAST":
            return hidden[row.end - 1].float() if row.ends else None
        if params.pooling_type == "CLS":
            if row.begins:
                # A copy: what a captured step returns is overwritten by its next replay.
                self._carried[row.slot] = hidden[row.first].float().clone()
            return self._carried[row.slot] if row.ends else None
        total = hidden[row.first : row.end].float().sum(0)
        if not row.begins:
            total = self._carried[row.slot] + total
        self._carried[row.slot] = total
        return total / num_prompt if row.ends else None


def read_vectors(pooled: Pooled) -> dict[int, list[float]]:
    """Row to vector, on the host; waits for the device."""
    vectors: list[list[float]] = pooled.vectors.tolist()
    return {row: vector[:size] for row, size, vector in zip(pooled.rows, pooled.sizes, vectors, strict=True)}
