"""Which model types there are: where each class is, and what describes it. One line a model; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane.models import describe, describe_bert

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.model import ModelSpec


class ModelEntry(NamedTuple):
    """A model type of the core."""

    load: str
    """"module:Class"."""
    describe: Callable[[dict[str, Any]], ModelSpec]


REGISTRY: dict[str, ModelEntry] = {
    "llama": ModelEntry("inferplane.models.llama:LlamaForCausalLM", describe.llama),
    "mistral": ModelEntry("inferplane.models.mistral:MistralForCausalLM", describe.mistral),
    "qwen2": ModelEntry("inferplane.models.qwen2:Qwen2ForCausalLM", describe.qwen2),
    "qwen3": ModelEntry("inferplane.models.qwen3:Qwen3ForCausalLM", describe.qwen3),
    "gemma3_text": ModelEntry("inferplane.models.gemma3_text:Gemma3ForCausalLM", describe.gemma3_text),
    "bert": ModelEntry("inferplane.models.bert:BertModel", describe_bert.bert),
    "gemma3": ModelEntry("inferplane.models.gemma3_text:Gemma3ForCausalLM", describe.gemma3_text),
}

MODELS: dict[str, str] = {model_type: entry.load for model_type, entry in REGISTRY.items()}
"""Model type to "module:Class"."""
