"""Llama (Touvron et al., 2023; Llama 2 and 3): the decoder that most others are measured by.

A block is h += Attention(RMSNorm(h)); h += SwiGLU(RMSNorm(h)). Positions enter by rotating queries and keys.
Also covers checkpoints of this shape such as SmolLM2, with biases and with any head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inferplane.layers.attention import Attention
from inferplane.layers.embedding import Embedding, LMHead
from inferplane.layers.layer import Layer
from inferplane.layers.linear import Linear
from inferplane.layers.loading import load_parameters
from inferplane.layers.mlp import GatedMLP
from inferplane.layers.norm import RMSNorm
from inferplane.layers.rotary import RotaryEmbedding
from inferplane.models.describe import rope_of

if TYPE_CHECKING:
    import torch

    from inferplane.layers.context import ModelContext
    from inferplane_api.batch import StepBatch
    from inferplane_api.checkpoint import Checkpoint
    from inferplane_api.kv import KVView


class LlamaAttention(Layer):
    """Grouped-query attention over rotated queries and keys. qkv_bias, output_bias: which products have a bias."""

    def __init__(
        self, context: ModelContext, index: int, name: str, *, qkv_bias: bool = False, output_bias: bool = False
    ) -> None:
        layer, hidden = context.spec.layers[index], context.spec.hidden_size
        q_size, kv_size = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
        qkv_names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.qkv_proj = Linear(context, qkv_names, hidden, (q_size, kv_size, kv_size), bias=qkv_bias)
        self.o_proj = Linear(context, (f"{name}.o_proj",), q_size, (hidden,), bias=output_bias)
        self._attention = Attention(context, index)
        self._rope = context.ops.rope

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kv: KVView) -> torch.Tensor:
        """x [T, hidden] gives [T, hidden]."""
        q, k, v = self._attention.split(self.qkv_proj(x))
        q, k = self._rope(q, k, cos, sin)
        return self.o_proj(self._attention(q, k, v, kv))


class LlamaBlock(Layer):
    """One decoder block. The residual sum travels beside x, so that addition and norm are one op."""

    def __init__(self, context: ModelContext, name: str, self_attn: LlamaAttention) -> None:
        config, hidden = context.config, context.spec.hidden_size
        eps = config.get("rms_norm_eps", 1e-6)
        self.input_layernorm = RMSNorm(context, f"{name}.input_layernorm", hidden, eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(context, f"{name}.post_attention_layernorm", hidden, eps)
        self.mlp = GatedMLP(
            context, f"{name}.mlp", config.get("hidden_act") or "silu", bias=config.get("mlp_bias", False)
        )

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, kv: KVView
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, residual) [T, hidden] each, before and after."""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, cos, sin, kv)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class LlamaForCausalLM(Layer):
    """The whole model: `forward` gives hidden states, `logits` turns chosen rows into logits."""

    STACKED: ClassVar[dict[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
    """Our linear layers that hold several of the checkpoint's."""
    SHARDED: ClassVar[dict[str, str]] = {
        "embed_tokens": "output",
        "qkv_proj": "output",
        "o_proj": "input",
        "gate_up_proj": "output",
        "down_proj": "input",
        "lm_head": "output",
    }
    """The dimension along which tensor parallelism cuts a weight: "output" (rows) or "input" (columns)."""

    def __init__(self, context: ModelContext) -> None:
        config, spec = context.config, context.spec
        self.embed_tokens = Embedding(context, "model.embed_tokens")
        self.layers = [
            LlamaBlock(context, name, self.attention(context, index, f"{name}.self_attn"))
            for index in range(spec.num_layers)
            for name in (f"model.layers.{index}",)
        ]
        self.norm = RMSNorm(context, "model.norm", spec.hidden_size, config.get("rms_norm_eps", 1e-6))
        self.lm_head = LMHead(context, "lm_head", tied=self.embed_tokens if spec.tie_word_embeddings else None)
        self.rotary = RotaryEmbedding(rope_of(config), context.device, context.ops.rope_angles)

    def attention(self, context: ModelContext, index: int, name: str) -> LlamaAttention:
        """The attention of one block."""
        bias = context.config.get("attention_bias", False)
        return LlamaAttention(context, index, name, qkv_bias=bias, output_bias=bias)

    def load(self, checkpoint: Checkpoint) -> None:
        """Read all weights. Raises InferplaneError naming tensors that are missing, unexpected or misshapen."""
        load_parameters(self, checkpoint)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """The step's hidden states after the last norm, [T, hidden]."""
        x = self.embed_tokens(batch)
        cos, sin = self.rotary(batch.positions)
        residual: torch.Tensor | None = None
        for layer, kv in zip(self.layers, batch.kv, strict=True):
            x, residual = layer(x, residual, cos, sin, kv)
        x, _ = self.norm.add(x, residual)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] gives logits [N, vocab] float32."""
        return self.lm_head(hidden)
