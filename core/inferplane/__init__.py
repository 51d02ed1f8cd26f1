"""Inferplane: LLM inference and serving with a core that knows no hardware. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["LLM", "BeamSearchParams", "RequestOutput", "SamplingParams", "__version__"]

_LAZY = {
    "LLM": "inferplane.llm",
    "BeamSearchParams": "inferplane.client.beam_search",
    "RequestOutput": "inferplane.client.outputs",
    "SamplingParams": "inferplane_api.sampling",
}

if TYPE_CHECKING:
    from inferplane.client.beam_search import BeamSearchParams
    from inferplane.client.outputs import RequestOutput
    from inferplane.llm import LLM
    from inferplane_api.sampling import SamplingParams


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
