"""Changes logits before the draw: bias, token masks and penalties, with token counts on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from inferplane.runner.batch_state import upload

if TYPE_CHECKING:
    from inferplane.runner.slot_sampling import Ints, SlotSampling
    from inferplane_api.step import NewRequest, SampleInputs


class ApplyTokenBitmask(Protocol):
    """The op `apply_token_bitmask`: sets logits of tokens whose bit is 0 to -inf, in place."""

    def __call__(self, logits: torch.Tensor, mask: torch.Tensor, /) -> None: ...


class TokenCounts:
    """How often a slot's request has seen each token; rows exist only for slots that need them."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self.output = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        """[rows, V] occurrences in the output."""
        self.prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        """[rows, V] whether the prompt has it."""

    def add(self, request: NewRequest) -> None:
        """Count the tokens that the request brings along."""
        row = self._take_row(request.slot)
        tokens = upload(np.array(request.token_ids, np.int64), self._device)
        output = tokens[request.num_prompt_tokens :]
        self.prompt[row].zero_().index_fill_(0, tokens[: request.num_prompt_tokens], True)
        self.output[row].zero_().index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        row = self._row_of.pop(slot, None)
        if row is not None:
            self._free.append(row)

    def rows(self, slots: Ints) -> torch.Tensor:
        """Their rows, [n] int64 on the device; every slot must have one."""
        return upload(np.array([self._row_of[slot] for slot in slots.tolist()], np.int64), self._device)

    def count(self, slots: Ints, tokens: torch.Tensor) -> None:
        """One more of tokens[i] [n] int64 in slots[i]."""
        ones = torch.ones_like(tokens, dtype=torch.int32)
        self.output.index_put_((self.rows(slots), tokens), ones, accumulate=True)

    def _take_row(self, slot: int) -> int:
        if slot in self._row_of:
            return self._row_of[slot]
        if not self._free:
            old = self.output.shape[0]
            grown = max(4, old)
            self.output = torch.cat([self.output, self.output.new_zeros((grown, self.output.shape[1]))])
            self.prompt = torch.cat([self.prompt, self.prompt.new_zeros((grown, self.prompt.shape[1]))])
            self._free = list(range(old + grown - 1, old - 1, -1))
        self._row_of[slot] = self._free.pop()
        return self._row_of[slot]


def apply_bias_and_masks(logits: torch.Tensor, columns: SlotSampling, slots: Ints, output_positions: Ints) -> None:
    """In place on logits [N, V]: logit_bias, allowed_token_ids, then ids that min_tokens holds off."""
    device = logits.device
    listed = slots.tolist()
    biased = [row for row, slot in enumerate(listed) if slot in columns.bias]
    if biased:
        pairs = [columns.bias[listed[row]] for row in biased]
        rows = np.repeat(np.array(biased, np.int64), [len(ids) for ids, _ in pairs])
        ids, values = np.concatenate([ids for ids, _ in pairs]), np.concatenate([values for _, values in pairs])
        logits.index_put_((upload(rows, device), upload(ids, device)), upload(values, device), accumulate=True)
    restricted = [row for row, slot in enumerate(listed) if slot in columns.allowed]
    if restricted:
        allowed = upload(np.stack([columns.allowed[listed[row]] for row in restricted]), device)
        rows_device = upload(np.array(restricted, np.int64), device)
        logits.index_copy_(0, rows_device, logits.index_select(0, rows_device).masked_fill(~allowed, -torch.inf))
    early = output_positions < columns.min_tokens[slots]
    held = [row for row in np.flatnonzero(early).tolist() if listed[row] in columns.held_off]
    if held:
        lists = [columns.held_off[listed[row]] for row in held]
        rows = np.repeat(np.array(held, np.int64), [len(ids) for ids in lists])
        never = torch.tensor(-torch.inf, device=device)
        logits.index_put_((upload(rows, device), upload(np.concatenate(lists), device)), never)


def apply_bitmask(apply: ApplyTokenBitmask, logits: torch.Tensor, inputs: SampleInputs) -> None:
    """In place on logits [N, V]: the grammar's masks of `inputs`."""
    words = np.frombuffer(inputs.bitmask, np.int32).reshape(len(inputs.bitmask_rows), -1).copy()
    rows = upload(np.array(inputs.bitmask_rows, np.int64), logits.device)
    chosen = logits.index_select(0, rows)
    apply(chosen, upload(words, logits.device))
    logits.index_copy_(0, rows, chosen)


def apply_penalties(logits: torch.Tensor, columns: SlotSampling, counts: TokenCounts, slots: Ints, rows: Ints) -> None:
    """In place on the given rows of logits [N, V]: repetition, then frequency, then presence penalty.

    Repetition (Keskar et al. 2019, CTRL) divides positive and multiplies negative logits of every token seen in the
    prompt or the output; frequency and presence (OpenAI) subtract per occurrence and once, for output tokens only.
    """
    device = logits.device
    slots = slots[rows]
    count_rows, logit_rows = counts.rows(slots), upload(rows, device)
    output = counts.output.index_select(0, count_rows)
    present = output > 0
    seen = counts.prompt.index_select(0, count_rows) | present
    repetition, frequency, presence = (
        upload(column[slots][:, None], device) for column in (columns.repetition, columns.frequency, columns.presence)
    )
    chosen = logits.index_select(0, logit_rows)
    repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen = torch.where(seen, repeated, chosen) - frequency * output - presence * present
    logits.index_copy_(0, logit_rows, chosen)
