"""Host cost of planning and confirming a decode step, without a device: JSON, microseconds per sequence and step.

    python benchmarks/scheduler.py [--steps 400] [--repeat 3]

Every running request decodes one token a step, with one step in flight, as the engine overlaps them. The cost of page
boundaries, hashing and the deltas is included. Thread time, best of the repeats: the machine may be shared.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

from inferplane.engine.limits import StepLimits
from inferplane.engine.scheduler import Scheduler
from inferplane.messages import Request
from inferplane_api.kv import KVGeometry, KVGroupSpec
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import StepResult

PROMPT = 64
BLOCK = 16


def make_geometry(windows: list[int | None]) -> KVGeometry:
    """One group per window (None: full attention)."""
    groups = tuple(
        KVGroupSpec(
            index=i,
            kind="full" if window is None else "sliding",
            layers=(i,),
            tokens_per_page=BLOCK,
            num_heads=8,
            num_kv_heads=8,
            head_size=64,
            dtype="bfloat16",
            window=window,
        )
        for i, window in enumerate(windows)
    )
    return KVGeometry(page_bytes=1 << 16, groups=groups, block_size=BLOCK)


def make_request(number: int, max_tokens: int) -> Request:
    """A prompt that shares nothing with the others."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    prompt = [number] + [7] * (PROMPT - 1)
    return Request(client_id="bench", request_id=f"r{number}", prompt_token_ids=prompt, params=params, seed=number)


def measure(running: int, waiting: int, steps: int, windows: list[int | None]) -> float:
    """Microseconds per running sequence and step."""
    length = PROMPT + 2 * steps + 16
    pages = len(windows) * (running + 1) * (length // BLOCK + 2) + 1
    limits = StepLimits(max_model_len=length, max_sequences=running, max_tokens=8192, max_chunk=8192)
    scheduler = Scheduler(limits, make_geometry(windows), pages)
    for number in range(running + waiting):
        scheduler.submit(make_request(number, length - PROMPT))
    in_flight = []

    def step() -> None:
        plan = scheduler.schedule()
        in_flight.append((plan, StepResult(step_id=plan.step_id, tokens=[[5] for _ in plan.sample_rows])))
        if len(in_flight) == 2:
            scheduler.update(*in_flight.pop(0))

    while len(scheduler.running.decoding) < running:
        step()
    spent = 0.0
    for _ in range(steps):
        before = time.thread_time()
        plan = scheduler.schedule()
        spent += time.thread_time() - before
        in_flight.append((plan, StepResult(step_id=plan.step_id, tokens=[[5] for _ in plan.sample_rows])))
        before = time.thread_time()
        scheduler.update(*in_flight.pop(0))
        spent += time.thread_time() - before
    return spent * 1e6 / (steps * running)


def main() -> None:
    """Measure each case and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    cases = [(64, 0, [None]), (256, 0, [None]), (1024, 0, [None]), (256, 10_000, [None]), (256, 0, [None, 512])]
    results = []
    gc.freeze()
    for running, waiting, windows in cases:
        best = min(measure(running, waiting, arguments.steps, windows) for _ in range(arguments.repeat))
        results.append(
            {"running": running, "waiting": waiting, "windows": windows, "us_per_sequence_and_step": round(best, 3)}
        )
    print(json.dumps({"benchmark": "scheduler", "steps": arguments.steps, "results": results}, indent=1))


if __name__ == "__main__":
    main()
