"""The persistent state of every slot on the host, and the tensors of one step; knows no model and no sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inferplane.runner.step_shapes import ANY_SHAPE, StepShapes, pad
from inferplane_api.batch import AttentionBatch

if TYPE_CHECKING:
    from inferplane_api.kv import KVGeometry
    from inferplane_api.runner import RunnerLimits
    from inferplane_api.step import NewRequest, StepPlan

Ints = npt.NDArray[np.int64]

PADDED_SLOT = -1
"""In the slot mapping: a padded token, which is not written."""


class Step(NamedTuple):
    """One step as tensors. T tokens, R rows; host columns are int64 and hold no padding."""

    input_ids: torch.Tensor
    """[T] int64, padded to a bucket; tokens that the host does not know are taken from the last sampled ones."""
    positions: torch.Tensor
    """[T] int64, padded likewise."""
    attention: tuple[AttentionBatch, ...]
    """Per KV group."""
    query_start: Ints
    """[R + 1]."""
    slots: Ints
    starts: Ints
    counts: Ints
    graph: bool = False
    """The step has the size of a captured one."""


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A host array on the device; shares memory where the device is the host, so the array must not change after."""
    return torch.from_numpy(array).to(device, non_blocking=True)


class BatchState:
    """Tokens and page tables of `limits.max_num_seqs` slots, changed by the deltas of StepPlans.

    The large arrays come from zeroed pages that the operating system maps when they are touched.
    """

    def __init__(
        self,
        limits: RunnerLimits,
        geometry: KVGeometry,
        device: torch.device,
        shapes: StepShapes = ANY_SHAPE,
    ) -> None:
        slots = limits.max_num_seqs
        self._shapes = shapes
        self.device = device
        self.tokens_per_page = tuple(group.tokens_per_page for group in geometry.groups)
        self.token_ids = np.zeros((slots, limits.max_model_len), np.int32)
        self.num_known = np.zeros(slots, np.int64)
        """Tokens of a slot that the host knows."""
        self.num_prompt = np.zeros(slots, np.int64)
        self.generation = np.zeros(slots, np.int64)
        """Grows when the request in a slot changes, so that a late result is not credited to its successor."""
        self.page_tables = tuple(
            np.zeros((slots, -(-limits.max_model_len // size)), np.int32) for size in self.tokens_per_page
        )

    def apply(self, plan: StepPlan) -> None:
        """Removed, added, then pages, in this order."""
        for slot in plan.removed:
            self._clear(slot)
        for request in plan.added:
            self._add(request)
        if plan.page_slots:
            slots, groups = np.array(plan.page_slots), np.array(plan.page_groups)
            indices, pages = np.array(plan.page_indices), np.array(plan.page_ids, np.int32)
            for group, table in enumerate(self.page_tables):
                chosen = groups == group
                table[slots[chosen], indices[chosen]] = pages[chosen]

    def _clear(self, slot: int) -> None:
        self.generation[slot] += 1
        self.num_known[slot] = 0
        for table in self.page_tables:
            table[slot] = 0

    def _add(self, request: NewRequest) -> None:
        slot, known = request.slot, len(request.token_ids)
        self._clear(slot)
        self.token_ids[slot, :known] = request.token_ids
        self.num_known[slot] = known
        self.num_prompt[slot] = request.num_prompt_tokens

    def record(self, slots: Ints, positions: Ints, generations: Ints, tokens: Ints) -> None:
        """Sampled tokens have reached the host: note them where the slot still holds the same request."""
        limit = self.token_ids.shape[1]
        fresh = (self.generation[slots] == generations) & (positions == self.num_known[slots]) & (positions < limit)
        self.token_ids[slots[fresh], positions[fresh]] = tokens[fresh]
        self.num_known[slots[fresh]] += 1

    def build(self, plan: StepPlan, last_sampled: torch.Tensor) -> Step:
        """The step's tensors. `last_sampled` [slots] int64 on the device stands in for a token that the host lacks."""
        slots, starts = np.array(plan.slots, np.int64), np.array(plan.starts, np.int64)
        counts = np.array(plan.counts, np.int64)
        query_start = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(counts, out=query_start[1:])
        rows = np.repeat(np.arange(len(slots)), counts)
        positions = np.arange(query_start[-1]) + (starts - query_start[:-1])[rows]
        graph = self._shapes.graph(len(positions), len(slots))
        num_tokens = graph or self._shapes.tokens(len(positions))
        num_rows = graph or self._shapes.rows(len(slots))
        input_ids = upload(pad(self.token_ids[slots[rows], positions].astype(np.int64), num_tokens), self.device)
        unknown = np.flatnonzero(starts + counts > self.num_known[slots])
        if unknown.size:
            sampled = last_sampled.index_select(0, upload(slots[unknown], self.device))
            input_ids.index_copy_(0, upload(query_start[1:][unknown] - 1, self.device), sampled)
        return Step(
            input_ids=input_ids,
            positions=upload(pad(positions, num_tokens), self.device),
            attention=self._attention(
                slots, starts + counts, counts, query_start, rows, positions, (num_tokens, num_rows)
            ),
            query_start=query_start,
            slots=slots,
            starts=starts,
            counts=counts,
            graph=graph is not None,
        )

    def _attention(
        self,
        slots: Ints,
        seq_lens: Ints,
        counts: Ints,
        query_start: Ints,
        rows: Ints,
        positions: Ints,
        padded: tuple[int, int],
    ) -> tuple[AttentionBatch, ...]:
        max_seq_len = int(seq_lens.max())
        longer = np.flatnonzero(counts != 1)
        num_decode_rows = int(longer[0]) if longer.size else len(slots)
        num_tokens, num_rows = padded
        query_start_host = pad(query_start.astype(np.int32), num_rows + 1, len(positions))
        seq_lens_host = pad(seq_lens.astype(np.int32), num_rows)
        query_start_device = upload(query_start_host, self.device)
        seq_lens_device = upload(seq_lens_host, self.device)
        batches = []
        for size, table in zip(self.tokens_per_page, self.page_tables, strict=True):
            width = table.shape[1] if self._shapes.static else -(-max_seq_len // size)
            pages = table[slots, :width]
            page, offset = np.divmod(positions, size)
            slot_mapping = pages[rows, page].astype(np.int64) * size + offset
            batches.append(
                AttentionBatch(
                    query_start=query_start_device,
                    seq_lens=seq_lens_device,
                    page_table=upload(pad(pages, num_rows), self.device),
                    slot_mapping=upload(pad(slot_mapping, num_tokens, PADDED_SLOT), self.device),
                    query_start_host=query_start_host,
                    seq_lens_host=seq_lens_host,
                    num_decode_rows=num_decode_rows,
                    max_query_len=int(counts.max()),
                    max_seq_len=max_seq_len,
                )
            )
        return tuple(batches)
