"""The vocabulary at both ends of a model: token embedding and output matrix, tied or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane.layers.layer import Layer, check_shape
from inferplane.layers.linear import pack
from inferplane_api.quant import DENSE, Float32Products, Weight

if TYPE_CHECKING:
    from inferplane.layers.context import ModelContext
    from inferplane_api.batch import StepBatch
    from inferplane_api.checkpoint import Checkpoint


class Embedding(Layer):
    """Token ids to vectors, times `scale` (rounded to the model's dtype, as Gemma has it)."""

    def __init__(self, context: ModelContext, name: str, *, scale: float | None = None) -> None:
        self._context = context
        self.name = f"{name}.weight"
        self._shape = (context.spec.vocab_size, context.spec.hidden_size)
        self._scale = None if scale is None else torch.tensor(scale, dtype=context.dtype, device=context.device)
        self.weight = torch.empty(0)
        self._embedding = context.ops.embedding

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The table."""
        return {self.name: self._shape}

    def read(self, checkpoint: Checkpoint) -> None:
        """Take the table, dequantized: rows are looked up."""
        dtype, device = self._context.dtype, self._context.device
        weight = checkpoint.weight(self.name)
        check_shape(self.name, tuple(weight.shape), self._shape)
        if weight.scheme.name == DENSE.name:
            self.weight = weight.data.to(device=device, dtype=dtype, copy=True)
        else:
            # Unpacked straight into the model's dtype and not copied: this is the largest tensor of a small model
            self.weight = weight.dequantize(dtype).to(device)

    def __call__(self, batch: StepBatch) -> torch.Tensor:
        """The step's input vectors, [T, hidden]: given embeddings where the batch masks them in (never scaled)."""
        embedded = self._embedding(batch.input_ids, self.weight)
        if self._scale is not None:
            embedded = embedded * self._scale
        if batch.input_embeds is None or batch.embeds_mask is None:
            return embedded
        return torch.where(batch.embeds_mask.unsqueeze(-1), batch.input_embeds.to(embedded.dtype), embedded)


class LMHead(Layer):
    """Hidden states to logits, float32. softcap: of the logits, as Gemma 2 has it.

    tied: the embedding whose table is the output matrix, None for a matrix of its own. As in transformers, a tied
    checkpoint that holds a different output matrix all the same uses that.
    """

    def __init__(
        self, context: ModelContext, name: str, *, tied: Embedding | None = None, softcap: float | None = None
    ) -> None:
        self._context = context
        self._name = f"{name}.weight"
        self._shape = (context.spec.vocab_size, context.spec.hidden_size)
        self._embedding = tied
        self._softcap = softcap
        self._soft_cap = context.ops.soft_cap

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The output matrix, unless it is tied."""
        return {} if self._embedding is not None else {self._name: self._shape}

    def optional(self) -> frozenset[str]:
        """A tied checkpoint may hold a copy."""
        return frozenset({self._name}) if self._embedding is not None else frozenset()

    def read(self, checkpoint: Checkpoint) -> None:
        """Pack the output matrix. A tied one shares the embedding's memory unless a kernel keeps it packed."""
        if self._embedding is None or self._holds_another(checkpoint, self._embedding.name):
            weight = checkpoint.weight(self._name)
            check_shape(self._name, tuple(weight.shape), self._shape)
        else:
            weight = self._tied_weight(checkpoint, self._embedding)
        self._packed = pack(self._context, [weight])
        kernel = self._packed.kernel
        self._apply = kernel.apply_float32 if isinstance(kernel, Float32Products) else kernel.apply

    def _holds_another(self, checkpoint: Checkpoint, embedding_name: str) -> bool:
        if self._name not in set(checkpoint.names()):
            return False
        return not torch.equal(checkpoint.tensor(self._name), checkpoint.tensor(embedding_name))

    def _tied_weight(self, checkpoint: Checkpoint, embedding: Embedding) -> Weight:
        weight = checkpoint.weight(embedding.name)
        if weight.scheme.name != DENSE.name:
            if self._context.linear.has_kernel(weight.scheme):
                return weight
            self._context.linear.announce_dequantized(weight.scheme)
        return Weight(DENSE, self._shape, embedding.weight, embedding.weight.to)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] gives logits [N, vocab] float32."""
        logits = self._apply(hidden, self._packed.data, None)
        if self._softcap is not None:
            logits = self._soft_cap(logits, self._softcap)
        return logits.float()
