"""The prefix index against the definition of a hit, and isolation by salt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.engine.pages import PagePool
from inferplane.engine.prefix import PrefixIndex, extend_chain, seed_digest
from inferplane.engine.request import RequestState


def make_state(lab, prompt, **fields):
    return RequestState(lab.request("r", prompt, max_tokens=1, **fields), (0, 0), 4096, 0.0)


def test_a_chain_depends_on_every_token_before_and_on_nothing_behind():
    one, two, other = [], [], []
    extend_chain(one, seed_digest(""), [1, 2, 3, 4, 5, 6, 7], 2, 3)
    extend_chain(two, seed_digest(""), [1, 2, 3, 4], 2, 1)
    extend_chain(two, seed_digest(""), [1, 2, 3, 4, 5, 6], 2, 3)
    extend_chain(other, seed_digest(""), [9, 2, 3, 4, 5, 6], 2, 3)
    assert one == two
    assert len({*one, *other}) == 6


def test_seeds_do_not_read_alike():
    seeds = [
        seed_digest(""),
        seed_digest("a"),
        seed_digest("a", (b"b",)),
        seed_digest("ab"),
        seed_digest("", (b"ab",)),
        seed_digest("", (b"a", b"b")),
        seed_digest("a", (b"", b"b")),
    ]
    assert len(set(seeds)) == len(seeds)


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    block=st.sampled_from([1, 2, 3]),
    shapes=st.lists(st.tuples(st.integers(1, 3), st.one_of(st.none(), st.integers(1, 9))), min_size=1, max_size=3),
    num_tokens=st.integers(1, 30),
)
def test_a_hit_is_the_longest_that_every_group_holds(lab, data, block, shapes, num_tokens):
    groups = [(multiple * block, window) for multiple, window in shapes]
    prompt = list(range(num_tokens))
    pool = PagePool(200)
    index = PrefixIndex(lab.geometry(groups, block), pool)
    publisher = make_state(lab, prompt)
    publisher.pages = [[pool.allocate() for _ in range(num_tokens // size)] for size, _ in groups]
    publisher.first = [0] * len(groups)
    index.publish(publisher, num_tokens)
    present = [{i for i in range(len(table)) if data.draw(st.integers(0, 5)) > 0} for table in publisher.pages]
    for group, table in enumerate(publisher.pages):
        for i, page in enumerate(table):
            if i not in present[group]:
                pool._unkey(page)
    limit = data.draw(st.integers(0, num_tokens))

    def valid(length):
        for group, (size, window) in enumerate(groups):
            first = 0 if window is None else max(0, length - (window - 1))
            if any(token // size not in present[group] for token in range(first, length)):
                return False
        return True

    stride = math.lcm(*(size for size, _ in groups))
    want = max(length for length in range(0, limit + 1, stride) if valid(length))
    hit = index.find(make_state(lab, prompt), limit)
    assert hit.length == want
    for group, (size, window) in enumerate(groups):
        first = 0 if window is None else max(0, want - (window - 1)) // size
        assert hit.first[group] == first
        assert hit.pages[group] == publisher.pages[group][first : want // size]


@pytest.mark.parametrize("groups", [[(4, None)], [(4, None), (8, 6)], [(2, 3)], [(4, None), (4, 9)]])
def test_every_offset_of_a_shared_prefix_hits_what_it_may(lab, groups):
    """A second request that differs from the first at token `shared` finds the full pages below it."""
    stride = math.lcm(*(size for size, _ in groups))
    base = [1 + i % 7 for i in range(24)]
    for shared in range(24):
        harness = lab.Harness(groups=groups, block_size=2, num_pages=200)
        harness.submit(lab.request("first", base, max_tokens=1))
        harness.run()
        other = [*base[:shared], 9, *base[shared + 1 :]]
        harness.submit(lab.request("second", other, max_tokens=4, ignore_eos=True))
        harness.run()
        cached = harness.outcomes["second"].deltas[0].num_cached_tokens
        if all(window is None for _, window in groups):
            assert cached == shared // stride * stride
        else:
            assert cached <= shared // stride * stride
        assert harness.result("second") == lab.expected(lab.request("x", other, max_tokens=4, ignore_eos=True), 64)


@pytest.mark.parametrize(("salts", "shared"), [(("", ""), 8), (("a", "a"), 8), (("a", ""), 0), (("a", "b"), 0)])
def test_a_salt_isolates(lab, salts, shared):
    harness = lab.Harness()
    for name, salt in zip(("first", "second"), salts, strict=True):
        harness.submit(lab.request(name, [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=2, cache_salt=salt))
        harness.run()
    assert harness.outcomes["second"].deltas[0].num_cached_tokens == shared


def test_one_token_is_always_computed(lab):
    harness = lab.Harness()
    for name in ("first", "second"):
        harness.submit(lab.request(name, [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1))
        harness.run()
    assert harness.outcomes["second"].deltas[0].num_cached_tokens == 4
    assert harness.result("first") == harness.result("second")


def test_rows_of_one_step_share_pages(lab):
    """The children of n > 1: the second hits what the first computes in the same step."""
    harness = lab.Harness()
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    harness.submit(*(lab.request(f"r{i}", prompt, max_tokens=3) for i in range(3)))
    harness.step()
    assert harness.runner.plans[0].counts == [1, 1, 9]
    assert harness.runner.plans[0].starts == [8, 8, 0]
    harness.run()
    assert len({tuple(harness.result(f"r{i}")[0]) for i in range(3)}) == 1


def test_generated_tokens_are_cached_too(lab):
    harness = lab.Harness(max_model_len=128)
    first = lab.request("first", [1, 2, 3], max_tokens=20, ignore_eos=True)
    harness.submit(first)
    harness.run()
    longer = [1, 2, 3, *harness.outcomes["first"].tokens, 5, 6]
    harness.submit(lab.request("second", longer, max_tokens=2))
    harness.run()
    assert harness.outcomes["second"].deltas[0].num_cached_tokens == 20


def test_reset_forgets_and_running_requests_go_on(lab):
    harness = lab.Harness()
    request = lab.request("r", [1, 2, 3, 4, 5, 6], max_tokens=12, ignore_eos=True)
    harness.submit(request)
    for _ in range(4):
        harness.step()
    assert harness.engine.control("reset_prefix_cache", {}) is True
    assert harness.scheduler.pool.num_cached == 0
    harness.run()
    assert harness.result("r") == lab.expected(request, 64)


def test_without_caching_nothing_is_found(lab):
    for fields in ({"prefix_caching": False}, {"features": frozenset({"no_prefix_cache"})}):
        harness = lab.Harness(**fields)
        for name in ("first", "second"):
            harness.submit(lab.request(name, [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=2))
            harness.run()
        assert harness.outcomes["second"].deltas[0].num_cached_tokens == 0
