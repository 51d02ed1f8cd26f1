"""vLLM's CPU build, through its `LLM`. Its settings for a CPU are environment variables: `compare.py` gives them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from adapters.offline_llm import prepare


class Engine:
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import torch
        import vllm

        self.vllm = vllm
        self.llm = vllm.LLM(
            model=settings["model"],
            dtype="bfloat16",
            seed=0,
            disable_log_stats=True,
            max_model_len=settings["context"],
            max_num_seqs=settings["max_seqs"],
        )
        notes = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("VLLM_CPU")]
        return {"versions": {"vllm": vllm.__version__, "torch": torch.__version__}, "notes": notes}

    def prepare(self, requests: list[tuple[list[int], int]], shared: int) -> Callable[[], list[list[int]]]:
        return prepare(self.llm, self.vllm.SamplingParams, requests)

    def score(self, text: str) -> list[float]:
        raise NotImplementedError("vLLM is not scored here")
