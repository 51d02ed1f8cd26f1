"""Excludes every token that would repeat an n-gram; each request's tokens stay on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.logits_processors import ProcessorContext, SlotRequest


class NoRepeatedNgrams:
    """Implements LogitsProcessor."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._sizes: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._tokens: dict[int, torch.Tensor] = {}

    def add(self, request: SlotRequest) -> bool:
        """The request carries our parameter, or we would not be asked."""
        known = [*request.prompt_token_ids, *request.output_token_ids]
        tokens = torch.zeros(self._context.max_model_len, dtype=torch.int64, device=self._context.device)
        tokens[: len(known)] = torch.tensor(known)
        self._sizes[request.slot] = request.arguments["no_repeat_ngram_size"]
        self._lengths[request.slot] = len(known)
        self._tokens[request.slot] = tokens
        return True

    def remove(self, slot: int) -> None:
        """Forget the request."""
        for table in (self._sizes, self._lengths, self._tokens):
            del table[slot]

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
        """Nothing here waits for the device: lengths are known on the host, tokens are compared where they are."""
        for row, slot in enumerate(slots):
            size, length = self._sizes[slot], self._lengths[slot]
            if length < size:
                continue
            tokens = self._tokens[slot][:length]
            ngrams = tokens.unfold(0, size, 1)
            repeated = (ngrams[:, :-1] == tokens[length - size + 1 :]).all(dim=-1)
            never = torch.zeros(len(ngrams), device=logits.device).masked_fill(repeated, -torch.inf)
            logits[row].index_put_((ngrams[:, -1],), never, accumulate=True)
        return logits

    def sampled(self, slots: Sequence[int], token_ids: torch.Tensor) -> None:
        """One more token each."""
        for row, slot in enumerate(slots):
            length = self._lengths[slot]
            if length < self._context.max_model_len:
                self._tokens[slot][length : length + 1] = token_ids[row : row + 1]
                self._lengths[slot] = length + 1
