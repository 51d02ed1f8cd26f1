"""Qwen 2 and 2.5 (Yang et al., 2024): Llama with biases on queries, keys and values, and optional sliding windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.models.llama import LlamaAttention, LlamaForCausalLM

if TYPE_CHECKING:
    from inferplane.layers.context import ModelContext


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama with qkv biases."""

    def attention(self, context: ModelContext, index: int, name: str) -> LlamaAttention:
        """Queries, keys and values have a bias, the output has none."""
        return LlamaAttention(context, index, name, qkv_bias=True)
