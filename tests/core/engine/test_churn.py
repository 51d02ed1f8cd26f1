"""100,000 random steps: arrivals, aborts, preemptions, failures, salts, shared prefixes, hybrid groups."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("num_steps", "memory"), [(4_000, True), (100_000, False)])
def test_random_steps_leave_the_pool_as_it_was(lab, num_steps, memory):
    """The short run checks every page that is read; the long one the tokens, which go wrong with the positions."""
    dice = random.Random(2)
    harness = lab.Harness(
        num_pages=40,
        memory=memory,
        groups=[(4, None), (8, 11), (4, 5)],
        max_model_len=48,
        max_num_batched_tokens=24,
        max_num_seqs=5,
        depth=2,
        policy="priority",
        max_num_partial_prefills=2,
    )
    engine, runner = harness.engine, harness.runner
    stems = [[dice.randrange(1, 5) for _ in range(dice.randrange(1, 24))] for _ in range(6)]
    alive: dict[str, object] = {}
    results = {"stop": 0, "length": 0, "abort": 0, "error": 0}
    outputs: dict[str, list[int]] = {}
    number = 0
    for step in range(num_steps):
        if len(alive) < 12 and dice.random() < 0.4:
            number += 1
            request = lab.request(
                f"r{number}",
                dice.choice(stems) + [dice.randrange(1, 5) for _ in range(dice.randrange(8))] or [1],
                max_tokens=dice.randrange(1, 16),
                ignore_eos=dice.random() < 0.5,
                priority=dice.randrange(3),
                cache_salt=dice.choice(["", "", "", "salt"]),
            )
            alive[request.request_id] = request
            outputs[request.request_id] = []
            engine.submit(request)
        if alive and dice.random() < 0.02:
            engine.abort("client", [dice.choice(list(alive))])
        if dice.random() < 0.002:
            call = dice.choice(["launch", "sample", "collect"])
            runner.failures = {(call, runner.plans[-1].step_id + 2 if runner.plans else 2): RuntimeError("planned")}
        runner.plans = runner.plans[-1:]
        for _, delta in engine.step():
            outputs[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                results[delta.finish_reason] += 1
                request = alive.pop(delta.request_id)
                tokens = outputs.pop(delta.request_id)
                want = lab.expected(request, 48)
                assert tokens == want[0][: len(tokens)]
                if delta.finish_reason in ("stop", "length"):
                    assert (tokens, delta.finish_reason, delta.stop_reason) == want
        if step % 1000 == 0:
            harness.scheduler.check()
    while engine.has_work():
        for _, delta in engine.step():
            if delta.finish_reason is not None:
                del alive[delta.request_id]
    harness.check_idle()
    assert not alive
    assert not runner.in_flight
    assert min(results.values()) > num_steps // 2_000
    stats = engine.stats()
    assert stats.num_preemptions > num_steps // 200
    assert stats.prefix_cache_hits > num_steps // 10


def test_the_engine_imports_no_torch():
    code = (
        "import sys, inferplane.engine.engine, inferplane.engine.scheduler;"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
