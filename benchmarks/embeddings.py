"""Throughput of 1024 short texts to vectors: `LLM.embed` against `transformers` as sentence-transformers runs it.

Both read MiniLM's folder in float32 and get the same token ids, 8 to 64 a text. transformers runs batches of 64, sorted
by length and padded to the longest, then pools and normalizes. Each measurement is a fresh process, the two take turns,
and medians are reported: numbers of one run compare, numbers of two machines do not. The largest difference between the
two engines' vectors is reported too.

    python benchmarks/embeddings.py --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import Any

ENGINES = ("inferplane", "transformers")
BATCH = 64
NUM_TEXTS = 1024
CLS, SEP, LOWEST_ID, HIGHEST_ID = 101, 102, 2000, 30000


def texts() -> list[list[int]]:
    rng = random.Random(42)
    return [
        [CLS, *(rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(rng.randint(6, 62))), SEP] for _ in range(NUM_TEXTS)
    ]


def run_inferplane(folder: str, prompts: list[list[int]]) -> tuple[float, list[list[float]]]:
    from inferplane import LLM

    llm = LLM(model=folder, dtype="float32")
    items = [{"prompt_token_ids": ids} for ids in prompts]
    llm.embed(items[:BATCH], use_tqdm=False)
    started = time.perf_counter()
    outputs = llm.embed(items, use_tqdm=False)
    seconds = time.perf_counter() - started
    return seconds, [output.outputs.embedding for output in outputs]


def run_transformers(folder: str, prompts: list[list[int]]) -> tuple[float, list[list[float]]]:
    import torch
    from transformers import AutoModel

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def embed(batch: list[list[int]]) -> list[list[float]]:
        longest = max(map(len, batch))
        ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in batch])
        mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in batch])
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(pooled, dim=-1).tolist()

    embed(prompts[:BATCH])
    started = time.perf_counter()
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    found: list[list[float]] = [[]] * len(prompts)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        for index, vector in zip(chosen, embed([prompts[index] for index in chosen]), strict=True):
            found[index] = vector
    return time.perf_counter() - started, found


def measure(engine: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--engine", engine, "--folder", folder]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine is not None:
        run = run_inferplane if args.engine == "inferplane" else run_transformers
        seconds, vectors = run(args.folder, texts())
        print(json.dumps({"seconds": seconds, "vectors": vectors}))
        return
    from inferplane.config import Config
    from inferplane.sources.resolve import resolve_source

    folder = str(resolve_source(Config.from_flat({"model": "minilm"}).model).path)
    seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    vectors: dict[str, list[list[float]]] = {}
    for _ in range(args.runs):
        for engine in ENGINES:
            result = measure(engine, folder)
            seconds[engine].append(result["seconds"])
            vectors[engine] = result["vectors"]
    medians = {engine: statistics.median(times) for engine, times in seconds.items()}
    pairs = zip(*vectors.values(), strict=True)
    report = {
        "texts": NUM_TEXTS,
        "tokens": sum(map(len, texts())),
        "cores": len(os.sched_getaffinity(0)),
        "texts_per_second": {engine: round(NUM_TEXTS / median, 1) for engine, median in medians.items()},
        "seconds": {engine: [round(each, 3) for each in times] for engine, times in seconds.items()},
        "ratio": round(medians["transformers"] / medians["inferplane"], 3),
        "largest_difference": max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
