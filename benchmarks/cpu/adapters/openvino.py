"""OpenVINO GenAI's continuous batching pipeline, with its prefix cache on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Engine:
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import numpy as np
        import openvino
        import openvino_genai

        self.np, self.openvino, self.genai = np, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = settings["max_seqs"]
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        # In whole GiB, the closest to the size of the others that it takes.
        scheduler.cache_size = max(1, round(settings["kv_bytes"] / 2**30))
        options = dict(settings.get("options") or {})
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", options)
        notes = [f"KV cache of {scheduler.cache_size} GiB, {options or 'its default precisions'}"]
        core = openvino.Core()
        for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"):
            notes.append(f"{name} {core.get_property('CPU', name)}")
        versions = {"openvino-genai": openvino_genai.__version__, "openvino": openvino.__version__}
        return {"versions": versions, "notes": notes}

    def prepare(self, requests: list[tuple[list[int], int]], shared: int) -> Callable[[], list[list[int]]]:
        prompts = [self.openvino.Tensor(self.np.array([ids], dtype=self.np.int64)) for ids, _ in requests]
        configs = [self._config(count) for _, count in requests]

        def run() -> list[list[int]]:
            results = self.pipeline.generate(prompts, configs)
            made = [list(result.m_generation_ids[0]) for result in results]
            # Some versions return the prompt in front of what was made.
            return [
                ids[len(prompt) :] if len(ids) == len(prompt) + count else ids
                for ids, (prompt, count) in zip(made, requests, strict=True)
            ]

        return run

    def score(self, text: str) -> list[float]:
        raise NotImplementedError("OpenVINO GenAI is not scored here")

    def _config(self, count: int) -> Any:
        config = self.genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos = True
        config.do_sample = False
        return config
