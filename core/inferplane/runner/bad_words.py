"""Keeps token sequences from being completed: output tails on the device, compared as one table. Knows no words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferplane.runner.batch_state import upload

if TYPE_CHECKING:
    from inferplane.runner.slot_sampling import Ints
    from inferplane_api.step import NewRequest

ANY = -2
"""In a prefix: matches every tail, where a sequence is shorter than the longest."""
NOTHING = -1
"""In a tail: before the output."""


class _Sequences(NamedTuple):
    """One slot's sequences: prefixes [S, W] padded with ANY on the left, and the last ids [S]."""

    prefixes: Ints
    last: Ints


class BadWords:
    """Sequences of the slots that have any. Nothing is done for a step without such a slot."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._num_slots = num_slots
        self._vocab_size = vocab_size
        self._device = device
        self._sequences: dict[int, _Sequences] = {}
        self._tails = torch.empty((num_slots, 0), dtype=torch.int64, device=device)
        """[slots, W], the last W output tokens."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._sequences

    def add(self, request: NewRequest) -> None:
        """A request enters its slot, perhaps with output from before a preemption."""
        kept = [s for s in request.params.bad_words_token_ids if max(s) < self._vocab_size]
        if not kept:
            return
        width = max(len(sequence) for sequence in kept) - 1
        prefixes = np.array([[ANY] * (width + 1 - len(s)) + list(s[:-1]) for s in kept], np.int64)
        self._sequences[request.slot] = _Sequences(prefixes.reshape(len(kept), width), np.array([s[-1] for s in kept]))
        missing = width - self._tails.shape[1]
        if missing > 0:
            before = torch.full((self._num_slots, missing), NOTHING, dtype=torch.int64, device=self._device)
            self._tails = torch.cat([before, self._tails], dim=1)
            # Tails of other slots are too short now, but no sequence of theirs looks further back.
        width = self._tails.shape[1]
        output = request.token_ids[request.num_prompt_tokens :][-width:] if width else []
        tail = np.array([NOTHING] * (width - len(output)) + output, np.int64)
        self._tails[request.slot] = upload(tail, self._device)

    def remove(self, slot: int) -> None:
        """The slot's request left."""
        self._sequences.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Ints) -> None:
        """In place on logits [N, V]: minus infinity for every token that would complete a sequence."""
        found = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._sequences]
        if not found:
            return
        width = self._tails.shape[1]
        tables = [self._sequences[slot] for _, slot in found]
        counts = [len(table.last) for table in tables]
        prefixes = np.full((sum(counts), width), ANY, np.int64)
        start = 0
        for table, count in zip(tables, counts, strict=True):
            prefixes[start : start + count, width - table.prefixes.shape[1] :] = table.prefixes
            start += count
        rows, owners = (upload(np.repeat(np.array(each), counts), self._device) for each in zip(*found, strict=True))
        prefix = upload(prefixes, self._device)
        complete = ((self._tails[owners] == prefix) | (prefix == ANY)).all(dim=-1)
        last = upload(np.concatenate([table.last for table in tables]), self._device)
        # Added, not put: one token may end several sequences of which only some match.
        never = torch.zeros(len(last), device=self._device).masked_fill(complete, -torch.inf)
        logits.index_put_((rows, last), never, accumulate=True)

    def record(self, slots: Ints, tokens: torch.Tensor) -> None:
        """tokens[i] [N] int64 on the device was drawn in slots[i]."""
        if not self._sequences or not self._tails.shape[1]:
            return
        rows = np.flatnonzero([slot in self._sequences for slot in slots.tolist()])
        if not rows.size:
            return
        owners, chosen = upload(slots[rows], self._device), tokens[upload(rows, self._device)]
        self._tails[owners] = torch.cat([self._tails[owners][:, 1:], chosen[:, None]], dim=1)
