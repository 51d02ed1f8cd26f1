"""A device with buckets, large pages and no mixed steps: every step fits, and every request gets its tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TOKEN_BUCKETS = (8, 32, 64)
BATCH_BUCKETS = (1, 4, 6)


def requests_of(lab, seed, count, longest):
    dice = random.Random(seed)
    stem = [dice.randrange(1, lab.VOCAB) for _ in range(longest // 2)]
    requests = []
    for i in range(count):
        own = [dice.randrange(1, lab.VOCAB) for _ in range(dice.randrange(1, longest // 2))]
        prompt = stem[: dice.randrange(len(stem))] + own if i % 2 else own
        requests.append(lab.request(f"r{i}", prompt, max_tokens=dice.randrange(1, 30), ignore_eos=True))
    return requests


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    page=st.sampled_from([4, 128]),
    spare=st.integers(0, 6),
    depth=st.integers(1, 2),
    mixed=st.booleans(),
)
def test_every_step_fits_the_buckets(lab, seed, page, spare, depth, mixed):
    groups = [(page, None), (page, 21)]
    longest = 160
    needed = -(-longest // page) + min(-(-longest // page), -(-20 // page) + 1)
    harness = lab.Harness(
        num_pages=1 + needed + spare,
        groups=groups,
        block_size=page,
        max_model_len=longest,
        max_num_seqs=max(BATCH_BUCKETS),
        max_num_batched_tokens=max(TOKEN_BUCKETS),
        depth=depth,
        constraints={"token_buckets": TOKEN_BUCKETS, "batch_buckets": BATCH_BUCKETS, "mixed_steps": mixed},
    )
    requests = requests_of(lab, seed, 9, 120)
    harness.submit(*requests)
    harness.run()
    for request in requests:
        assert harness.result(request.request_id) == lab.expected(request, longest)
    for plan in harness.runner.plans:
        assert plan.num_tokens <= max(TOKEN_BUCKETS)
        assert len(plan.slots) <= max(BATCH_BUCKETS)
        if not mixed:
            assert set(plan.counts) == {1} or min(plan.counts) > 1


@pytest.mark.parametrize("mixed", [True, False])
def test_large_pages_preempt_and_go_on(lab, mixed):
    """Prompts that fill their page to the last tokens: every request soon needs a second one, and there are too few."""
    harness = lab.Harness(
        num_pages=6,
        groups=[(128, None)],
        block_size=128,
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        depth=2,
        constraints={"token_buckets": (8, 64), "batch_buckets": (1, 4), "mixed_steps": mixed},
    )
    requests = [
        lab.request(f"r{i}", [1 + (i + j) % 40 for j in range(120)], max_tokens=40, ignore_eos=True) for i in range(4)
    ]
    harness.submit(*requests)
    harness.run()
    assert harness.engine.stats().num_preemptions > 0
    for request in requests:
        assert harness.result(request.request_id) == lab.expected(request, 256)
