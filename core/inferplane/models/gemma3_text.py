"""Gemma 3 (Gemma Team, 2025), the language model: sliding and full layers, a norm before and after every part.

A block is h += Norm(Attention(Norm(h))); h += Norm(GeGLU(Norm(h))). Norm weights are stored minus one, embeddings are
scaled by sqrt(hidden), queries and keys are normalised per head, and sliding and full layers have rotary embeddings of
their own. Also reads the language model out of a checkpoint of "gemma3" (text and vision).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inferplane.layers.attention import Attention
from inferplane.layers.embedding import Embedding, LMHead
from inferplane.layers.layer import Layer
from inferplane.layers.linear import Linear
from inferplane.layers.loading import RenamedCheckpoint, load_parameters
from inferplane.layers.mlp import GatedMLP
from inferplane.layers.norm import RMSNorm
from inferplane.layers.rotary import RotaryEmbedding
from inferplane.log import get_logger
from inferplane.models.describe import gemma3_text_config, rope_of
from inferplane.models.llama import LlamaForCausalLM

if TYPE_CHECKING:
    import torch

    from inferplane.layers.context import ModelContext
    from inferplane_api.batch import StepBatch
    from inferplane_api.checkpoint import Checkpoint
    from inferplane_api.kv import KVView

logger = get_logger("models.gemma3_text")

_TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
"""How checkpoints of text and vision call the language model, before and since transformers 4.52, and our names."""
_VISION_PREFIXES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def _text_part(checkpoint: Checkpoint) -> Checkpoint:
    """The language model of a checkpoint of text and vision, under the names that it has alone."""
    names = list(checkpoint.names())
    if not any(name.startswith(tuple(_TEXT_PREFIXES)) for name in names):
        return checkpoint
    renamed = {_text_name(name): name for name in names if not name.startswith(_VISION_PREFIXES)}
    logger.info("text only: %d tensors of the vision part are not read", len(names) - len(renamed))
    return RenamedCheckpoint(checkpoint, renamed)


def _text_name(name: str) -> str:
    for prefix, replacement in _TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _norm(context: ModelContext, name: str, size: int) -> RMSNorm:
    return RMSNorm(context, name, size, context.config.get("rms_norm_eps", 1e-6), offset=1.0)


class Gemma3Attention(Layer):
    """Grouped-query attention with normalised queries and keys. Scale, window and soft cap are the ModelSpec's."""

    def __init__(self, context: ModelContext, index: int, name: str) -> None:
        layer, hidden = context.spec.layers[index], context.spec.hidden_size
        q_size, kv_size = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
        bias = context.config.get("attention_bias", False)
        qkv_names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.qkv_proj = Linear(context, qkv_names, hidden, (q_size, kv_size, kv_size), bias=bias)
        self.q_norm = _norm(context, f"{name}.q_norm", layer.head_size)
        self.k_norm = _norm(context, f"{name}.k_norm", layer.head_size)
        self.o_proj = Linear(context, (f"{name}.o_proj",), q_size, (hidden,), bias=bias)
        self._attention = Attention(context, index)
        self._rope = context.ops.rope

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kv: KVView) -> torch.Tensor:
        """x [T, hidden] gives [T, hidden]."""
        q, k, v = self._attention.split(self.qkv_proj(x))
        q, k = self._rope(self.q_norm(q), self.k_norm(k), cos, sin)
        return self.o_proj(self._attention(q, k, v, kv))


class Gemma3Block(Layer):
    """One decoder block; the residual sum travels beside x, so that addition and norm are one op."""

    def __init__(self, context: ModelContext, index: int, name: str) -> None:
        hidden = context.spec.hidden_size
        self.input_layernorm = _norm(context, f"{name}.input_layernorm", hidden)
        self.self_attn = Gemma3Attention(context, index, f"{name}.self_attn")
        self.post_attention_layernorm = _norm(context, f"{name}.post_attention_layernorm", hidden)
        self.pre_feedforward_layernorm = _norm(context, f"{name}.pre_feedforward_layernorm", hidden)
        activation = context.config.get("hidden_activation") or "gelu_pytorch_tanh"
        self.mlp = GatedMLP(context, f"{name}.mlp", activation)
        self.post_feedforward_layernorm = _norm(context, f"{name}.post_feedforward_layernorm", hidden)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, kv: KVView
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, residual) [T, hidden] each, before and after."""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.post_attention_layernorm(self.self_attn(x, cos, sin, kv))
        x, residual = self.pre_feedforward_layernorm.add(x, residual)
        return self.post_feedforward_layernorm(self.mlp(x)), residual


class Gemma3ForCausalLM(Layer):
    """The whole model: `forward` gives hidden states, `logits` turns chosen rows into logits."""

    STACKED: ClassVar[dict[str, tuple[str, ...]]] = LlamaForCausalLM.STACKED
    SHARDED: ClassVar[dict[str, str]] = LlamaForCausalLM.SHARDED

    def __init__(self, context: ModelContext) -> None:
        config = gemma3_text_config(context.config)
        context = context._replace(config=config)
        spec = context.spec
        self.embed_tokens = Embedding(context, "model.embed_tokens", scale=spec.hidden_size**0.5)
        self.layers = [Gemma3Block(context, index, f"model.layers.{index}") for index in range(spec.num_layers)]
        self.norm = _norm(context, "model.norm", spec.hidden_size)
        self.lm_head = LMHead(
            context,
            "lm_head",
            tied=self.embed_tokens if spec.tie_word_embeddings else None,
            softcap=config.get("final_logit_softcapping"),
        )
        self._kinds = [layer.kind for layer in spec.layers]
        self.rotary = {
            "full": RotaryEmbedding(rope_of(config, "full_attention"), context.device, context.ops.rope_angles),
            "sliding": RotaryEmbedding(rope_of(config, "sliding_attention"), context.device, context.ops.rope_angles),
        }

    def load(self, checkpoint: Checkpoint) -> None:
        """Read all weights; of a checkpoint of text and vision, those of the language model.

        Raises InferplaneError naming tensors that are missing, unexpected or misshapen.
        """
        load_parameters(self, _text_part(checkpoint))

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """The step's hidden states after the last norm, [T, hidden]."""
        x = self.embed_tokens(batch)
        angles = {kind: rotary(batch.positions) for kind, rotary in self.rotary.items()}
        residual: torch.Tensor | None = None
        for layer, kind, kv in zip(self.layers, self._kinds, batch.kv, strict=True):
            x, residual = layer(x, residual, *angles[kind], kv)
        x, _ = self.norm.add(x, residual)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] gives logits [N, vocab] float32."""
        return self.lm_head(hidden)
