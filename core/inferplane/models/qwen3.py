"""Qwen 3 (Yang et al., 2025): Llama whose queries and keys are normalised per head before they are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.layers.norm import RMSNorm
from inferplane.models.llama import LlamaAttention, LlamaForCausalLM

if TYPE_CHECKING:
    import torch

    from inferplane.layers.context import ModelContext
    from inferplane_api.kv import KVView


class Qwen3Attention(LlamaAttention):
    """Grouped-query attention with normalised queries and keys; every product has a bias or none has."""

    def __init__(self, context: ModelContext, index: int, name: str) -> None:
        bias = context.config.get("attention_bias", False)
        super().__init__(context, index, name, qkv_bias=bias, output_bias=bias)
        head_size, eps = context.spec.layers[index].head_size, context.config.get("rms_norm_eps", 1e-6)
        self.q_norm = RMSNorm(context, f"{name}.q_norm", head_size, eps)
        self.k_norm = RMSNorm(context, f"{name}.k_norm", head_size, eps)

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kv: KVView) -> torch.Tensor:
        """x [T, hidden] gives [T, hidden]."""
        q, k, v = self._attention.split(self.qkv_proj(x))
        q, k = self._rope(self.q_norm(q), self.k_norm(k), cos, sin)
        return self.o_proj(self._attention(q, k, v, kv))


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Llama with normalised queries and keys."""

    def attention(self, context: ModelContext, index: int, name: str) -> LlamaAttention:
        """One block's attention."""
        return Qwen3Attention(context, index, name)
