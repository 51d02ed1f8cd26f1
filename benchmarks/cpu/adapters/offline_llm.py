"""The work of an engine whose Python interface is vLLM's `LLM` and `SamplingParams`; imports no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def prepare(llm: Any, params_class: Any, requests: list[tuple[list[int], int]]) -> Callable[[], list[list[int]]]:
    """See `Adapter.prepare`."""
    prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
    params = [
        params_class(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False) for _, count in requests
    ]

    def run() -> list[list[int]]:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run
