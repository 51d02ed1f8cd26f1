"""BERT (Devlin et al., 2018): an encoder whose tokens see their whole text, in both directions; it generates nothing.

A token enters as the sum of its word, its position and its segment. A block is h = LayerNorm(h + Attention(h));
h = LayerNorm(h + W2 gelu(W1 h)). Also MiniLM and the many embedding models that were trained from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch.nn.functional as F

from inferplane.layers.embedding import Embedding
from inferplane.layers.encoder_attention import EncoderAttention, sort_rows
from inferplane.layers.layer import Layer, read_tensor
from inferplane.layers.linear import Linear
from inferplane.layers.loading import RenamedCheckpoint, load_parameters
from inferplane.layers.norm import LayerNorm

if TYPE_CHECKING:
    import torch

    from inferplane.layers.context import ModelContext
    from inferplane.layers.encoder_attention import SortedRows
    from inferplane_api.batch import StepBatch
    from inferplane_api.checkpoint import Checkpoint

_HEADS = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")
"""In a checkpoint, and of no use here: what classifies a pair of sentences, and a buffer."""


class BertEmbeddings(Layer):
    """Words, positions and segments. All tokens are of the first segment."""

    def __init__(self, context: ModelContext) -> None:
        config, hidden = context.config, context.spec.hidden_size
        self._context = context
        self._shapes: dict[str, tuple[int, ...]] = {
            "embeddings.position_embeddings.weight": (config.get("max_position_embeddings", 512), hidden),
            "embeddings.token_type_embeddings.weight": (config.get("type_vocab_size", 2), hidden),
        }
        self.words = Embedding(context, "embeddings.word_embeddings")
        self.norm = LayerNorm(context, "embeddings.LayerNorm", hidden, config.get("layer_norm_eps", 1e-12))
        self._embedding = context.ops.embedding

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tables of positions and segments."""
        return self._shapes

    def read(self, checkpoint: Checkpoint) -> None:
        """Take both tables."""
        dtype, device = self._context.dtype, self._context.device
        self._positions, segments = (
            read_tensor(checkpoint, name, shape, dtype, device) for name, shape in self._shapes.items()
        )
        self._segment = segments[0]

    def __call__(self, batch: StepBatch) -> torch.Tensor:
        """[T, hidden]."""
        words, positions = self.words(batch), self._embedding(batch.positions, self._positions)
        return self.norm(words + self._segment + positions)


class BertBlock(Layer):
    """One block: attention and a feed-forward network, each normalised together with what it was given."""

    def __init__(self, context: ModelContext, index: int, name: str) -> None:
        config, spec = context.config, context.spec
        hidden, inner, eps = spec.hidden_size, spec.intermediate_size, config.get("layer_norm_eps", 1e-12)
        attention = f"{name}.attention"
        qkv_names = tuple(f"{attention}.self.{part}" for part in ("query", "key", "value"))
        self.qkv = Linear(context, qkv_names, hidden, (hidden, hidden, hidden), bias=True)
        self.attention_output = Linear(context, (f"{attention}.output.dense",), hidden, (hidden,), bias=True)
        self.attention_norm = LayerNorm(context, f"{attention}.output.LayerNorm", hidden, eps)
        self.intermediate = Linear(context, (f"{name}.intermediate.dense",), hidden, (inner,), bias=True)
        self.output = Linear(context, (f"{name}.output.dense",), inner, (hidden,), bias=True)
        self.output_norm = LayerNorm(context, f"{name}.output.LayerNorm", hidden, eps)
        self._attention = EncoderAttention(context, index)
        self._approximate = "none" if config.get("hidden_act", "gelu") == "gelu" else "tanh"

    def __call__(self, x: torch.Tensor, rows: SortedRows) -> torch.Tensor:
        """x [T, hidden] gives [T, hidden]."""
        x = self.attention_norm(x + self.attention_output(self._attention(self.qkv(x), rows)))
        inner = F.gelu(self.intermediate(x), approximate=self._approximate)
        return self.output_norm(x + self.output(inner))


class BertModel(Layer):
    """The whole model: `forward` gives hidden states; there are no logits."""

    STACKED: ClassVar[dict[str, tuple[str, ...]]] = {"qkv": ("query", "key", "value")}
    """Our linear layers that hold several of the checkpoint's."""
    SHARDED: ClassVar[dict[str, str]] = {
        "qkv": "output",
        "attention_output": "input",
        "intermediate": "output",
        "output": "input",
    }
    """The dimension along which tensor parallelism cuts a weight: "output" (rows) or "input" (columns)."""

    def __init__(self, context: ModelContext) -> None:
        self.embeddings = BertEmbeddings(context)
        self.layers = [BertBlock(context, index, f"encoder.layer.{index}") for index in range(context.spec.num_layers)]

    def optional(self) -> frozenset[str]:
        """What a checkpoint may hold besides."""
        return frozenset(_HEADS)

    def load(self, checkpoint: Checkpoint) -> None:
        """Read all weights; of a checkpoint with a head for another task, those of the encoder.

        Raises InferplaneError naming tensors that are missing, unexpected or misshapen.
        """
        load_parameters(self, _encoder_part(checkpoint))

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """The step's hidden states after the last block, [T, hidden]."""
        rows = sort_rows(batch)
        x = rows.sort(self.embeddings(batch))
        for layer in self.layers:
            x = layer(x, rows)
        return rows.restore(x)


def _encoder_part(checkpoint: Checkpoint) -> Checkpoint:
    """`BertForMaskedLM` and its like call the encoder "bert." and have a head of their own beside it."""
    names = {name.removeprefix("bert."): name for name in checkpoint.names() if name.startswith("bert.")}
    return RenamedCheckpoint(checkpoint, names) if names else checkpoint
