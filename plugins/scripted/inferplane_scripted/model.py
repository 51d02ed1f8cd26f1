"""A model that is a table: the logits after a token are its row. Runs on the real runner, sampler and scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from inferplane.layers.context import ModelContext
    from inferplane_api.batch import StepBatch
    from inferplane_api.checkpoint import Checkpoint


class ScriptedBigram:
    """logits(t) = table[t]; attention is declared, so that a cache exists, and never used."""

    def __init__(self, context: ModelContext) -> None:
        size = context.spec.vocab_size
        self._dtype = context.dtype
        self._device = context.device
        self.table = torch.zeros(size, size, dtype=context.dtype, device=context.device)

    def load(self, checkpoint: Checkpoint) -> None:
        """Read the tensor "table" [vocab, vocab]."""
        self.table = checkpoint.tensor("table").to(device=self._device, dtype=self._dtype)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """[T, vocab]: the rows of the step's tokens, which here are the hidden states."""
        return self.table[batch.input_ids]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, vocab] float32."""
        return hidden.float()
