"""Throughput of 64 mixed requests: `inferplane.LLM` against `transformers` batched generate, on the same weights.

Both read one Hugging Face folder of bfloat16 weights (the GGUF file of the default model, dequantized once and cached),
get the same token ids, decode greedily and ignore the end token. Both compute in the same type: with `--dtype auto` in
the one that inferplane chooses on this host, which is float32 where the processor has no bfloat16 arithmetic.
transformers runs static batches of 16 with left padding, each to its longest request; only tokens that were asked for
count. Each measurement is a fresh process, the two engines take turns, and medians are reported: numbers of one run
compare, numbers of two machines do not.

    python benchmarks/offline.py --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENGINES = ("inferplane", "transformers")
BATCH = 16
LOWEST_ID, HIGHEST_ID = 1000, 40000
"""Ordinary tokens of the default model's vocabulary."""

Workload = list[tuple[list[int], int]]


def workload(num_requests: int) -> Workload:
    """(prompt token ids, tokens to generate): 64 to 256 in, 64 to 128 out, the same at every call."""
    rng = random.Random(42)
    requests = []
    for _ in range(num_requests):
        num_in, num_out = rng.randint(64, 256), rng.randint(64, 128)
        requests.append(([rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(num_in)], num_out))
    return requests


def run_inferplane(folder: str, requests: Workload, dtype: str) -> dict[str, Any]:
    from inferplane import LLM, SamplingParams

    llm = LLM(model=folder, dtype=dtype)
    prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for _, count in requests]
    warm = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    llm.generate([{"prompt_token_ids": list(range(LOWEST_ID, LOWEST_ID + 16))}], warm, use_tqdm=False)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert lengths == [count for _, count in requests]
    heads = [list(output.outputs[0].token_ids[:8]) for output in outputs]
    return {"seconds": seconds, "heads": heads, "dtype": llm.plan.dtype}


def run_transformers(folder: str, requests: Workload, dtype: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 2

    def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[2] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            made = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False
            )
        return made[:, longest:].tolist()

    generate([list(range(LOWEST_ID, LOWEST_ID + 16))], 4)
    heads: list[list[int]] = []
    started = time.perf_counter()
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        made = generate([ids for ids, _ in batch], max(count for _, count in batch))
        heads.extend(row[:8] for row in made)
    return {"seconds": time.perf_counter() - started, "heads": heads, "dtype": dtype}


def make_folder(cache: Path) -> Path:
    """The default model as a bfloat16 Hugging Face folder, made once."""
    folder = cache / "smollm2-bf16"
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from inferplane.config import Config
    from inferplane.sources.resolve import resolve_source

    path = resolve_source(Config.from_flat({"model": "smollm2"}).model).path
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # else it would save the packed weights
    )
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(unfinished)
    unfinished.rename(folder)
    return folder


def measure(engine: str, folder: Path, num_requests: int, dtype: str) -> dict[str, Any]:
    """One engine in a fresh process."""
    options = ["--folder", str(folder), "--requests", str(num_requests), "--dtype", dtype]
    command = [sys.executable, __file__, "--child", engine, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def child(engine: str, folder: str, num_requests: int, dtype: str) -> None:
    requests = workload(num_requests)
    result = (run_inferplane if engine == "inferplane" else run_transformers)(folder, requests, dtype)
    result["output_tokens_per_second"] = sum(count for _, count in requests) / result["seconds"]
    result["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def agreement(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Share of requests whose first token is the same; near ties may differ in 16 bit."""
    pairs = list(zip(one["heads"], other["heads"], strict=True))
    return sum(a[0] == b[0] for a, b in pairs) / len(pairs)


def compare(folder: Path, runs: int, num_requests: int, dtype: str) -> dict[str, Any]:
    """Interleaved runs of both engines, medians and their ratio."""
    results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for index in range(runs):
        for engine in ENGINES if index % 2 == 0 else reversed(ENGINES):
            results[engine].append(measure(engine, folder, num_requests, dtype))
            dtype = results[engine][-1]["dtype"]  # what "auto" became for the first
            speed = results[engine][-1]["output_tokens_per_second"]
            print(f"run {index + 1} {engine}: {speed:.1f} tok/s", file=sys.stderr, flush=True)
    report: dict[str, Any] = {}
    for engine in ENGINES:
        speeds = [result["output_tokens_per_second"] for result in results[engine]]
        report[engine] = {
            "output_tokens_per_second": round(statistics.median(speeds), 1),
            "runs": [round(speed, 1) for speed in speeds],
            "peak_memory_mb": round(statistics.median(result["peak_memory_mb"] for result in results[engine])),
        }
    speeds = {engine: report[engine]["output_tokens_per_second"] for engine in ENGINES}
    report["ratio"] = round(speeds["inferplane"] / speeds["transformers"], 2)
    report["same_first_token"] = round(agreement(results["inferplane"][0], results["transformers"][0]), 3)
    report["dtype"] = dtype
    report["requests"] = num_requests
    report["processors"] = len(os.sched_getaffinity(0))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="fresh processes of each engine [3]")
    parser.add_argument("--requests", type=int, default=64, help="requests of the workload [64]")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/inferplane/benchmarks").expanduser())
    parser.add_argument("--folder", help="a Hugging Face folder to use instead of the default model")
    parser.add_argument("--child", choices=(*ENGINES, "prepare"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "prepare":
        print(make_folder(arguments.cache))
    elif arguments.child:
        child(arguments.child, arguments.folder, arguments.requests, arguments.dtype)
    else:
        folder = arguments.folder
        if folder is None:
            arguments.cache.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, "--child", "prepare", "--cache", str(arguments.cache)]
            folder = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
        print(json.dumps(compare(Path(folder), arguments.runs, arguments.requests, arguments.dtype), indent=1))


if __name__ == "__main__":
    main()
