"""vLLM's CPU build, through its `LLM`. Its settings for a CPU are environment variables: `compare.py` gives them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


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
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        params = [
            self.vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
            for _, count in requests
        ]

        def run() -> list[list[int]]:
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            return [list(output.outputs[0].token_ids) for output in outputs]

        return run

    def score(self, text: str) -> list[float]:
        raise NotImplementedError("vLLM is not scored here")
