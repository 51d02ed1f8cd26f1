"""Mistral 7B (Jiang et al., 2023) and its successors: Llama whose layers may see a sliding window only.

The window is in the ModelSpec's layers; the attention backend applies it, so the code is Llama's without biases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.models.llama import LlamaAttention, LlamaForCausalLM

if TYPE_CHECKING:
    from inferplane.layers.context import ModelContext


class MistralForCausalLM(LlamaForCausalLM):
    """Llama without biases."""

    def attention(self, context: ModelContext, index: int, name: str) -> LlamaAttention:
        """No product has a bias."""
        return LlamaAttention(context, index, name)
