"""Inferplane in its own process, through its public `LLM`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.offline_llm import prepare


class Engine:
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import torch

        import inferplane
        from inferplane import LLM

        options = {"platform_option": settings["options"]} if settings.get("options") else {}
        self.llm = LLM(
            model=settings["model"],
            max_model_len=settings["context"],
            max_num_seqs=settings["max_seqs"],
            kv_cache_memory_bytes=settings["kv_bytes"],
            **options,
        )
        plan = self.llm.plan
        notes = [f"activations {plan.dtype}, KV {plan.kv_dtype}"]
        return {"versions": {"inferplane": inferplane.__version__, "torch": torch.__version__}, "notes": notes}

    def prepare(self, requests: list[tuple[list[int], int]], shared: int) -> Callable[[], list[list[int]]]:
        from inferplane import SamplingParams

        return prepare(self.llm, SamplingParams, requests)

    def score(self, text: str) -> list[float]:
        from inferplane import SamplingParams

        assert self.llm.tokenizer is not None
        ids = self.llm.tokenizer.encode(text)
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        (output,) = self.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        return [
            -entry[token].logprob for token, entry in zip(ids, output.prompt_logprobs, strict=True) if entry is not None
        ]
