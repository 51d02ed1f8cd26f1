"""transformers' `generate` in padded static batches of 16, each to its own longest output; asked-for tokens count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH = 16
PAD = 2


class Engine:
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import torch
        import transformers

        self.torch = torch
        torch.set_num_threads(settings["threads"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.bfloat16).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = PAD
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        return {"versions": versions, "notes": [f"static batches of {BATCH}, left-padded, KV bfloat16"]}

    def prepare(self, requests: list[tuple[list[int], int]], shared: int) -> Callable[[], list[list[int]]]:
        def run() -> list[list[int]]:
            outputs: list[list[int]] = []
            for start in range(0, len(requests), BATCH):
                outputs += self._generate(requests[start : start + BATCH])
            return outputs

        return run

    def score(self, text: str) -> list[float]:
        raise NotImplementedError("transformers is not scored here")

    def _generate(self, requests: list[tuple[list[int], int]]) -> list[list[int]]:
        width = max(len(ids) for ids, _ in requests)
        steps = max(count for _, count in requests)
        padded = self.torch.tensor([[PAD] * (width - len(ids)) + ids for ids, _ in requests])
        mask = self.torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in requests])
        with self.torch.inference_mode():
            made = self.model.generate(
                input_ids=padded, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False
            )
        rows = made[:, width:].tolist()
        return [row[:count] for row, (_, count) in zip(rows, requests, strict=True)]
