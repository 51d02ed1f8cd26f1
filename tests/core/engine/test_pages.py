"""PagePool: order of reuse, quarantine, revival, and a state machine against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferplane.engine.pages import PagePool


def test_the_null_page_is_never_given_out():
    pool = PagePool(5)
    assert sorted(pool.allocate() for _ in range(4)) == [1, 2, 3, 4]
    assert pool.allocate() == 0
    assert pool.usage == 1.0


def test_pages_come_back_in_the_order_in_which_they_were_freed():
    pool = PagePool(5)
    pages = [pool.allocate() for _ in range(4)]
    for page in pages:
        pool.publish(page, bytes([page]))
    for page in (pages[2], pages[0], pages[3], pages[1]):
        pool.release(page)
    assert [pool.allocate() for _ in range(4)] == [pages[2], pages[0], pages[3], pages[1]]


def test_pages_without_contents_go_before_cached_ones():
    pool = PagePool(4)
    cached, plain, other = (pool.allocate() for _ in range(3))
    pool.publish(cached, b"cached")
    pool.publish(other, b"other")
    for page in (cached, plain, other):
        pool.release(page)
    assert [pool.allocate() for _ in range(3)] == [plain, cached, other]


def test_a_hit_revives_a_free_page_and_allocation_forgets_it():
    pool = PagePool(3)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"first")
    pool.release(first)
    assert pool.find(b"first") == first
    pool.hold(first)
    assert pool.num_free == 0
    assert pool.allocate() == 0
    pool.release(first)
    assert pool.allocate() == first
    assert pool.find(b"first") is None
    pool.check([first, second])


def test_a_shared_page_is_freed_by_its_last_holder():
    pool = PagePool(3)
    page = pool.allocate()
    pool.hold(page)
    pool.release(page)
    assert pool.num_free == 1
    pool.release(page)
    assert pool.num_free == 2


def test_a_page_waits_for_every_step_launched_before_it_was_freed():
    pool = PagePool(2)
    page = pool.allocate()
    pool.launch(1)
    pool.launch(2)
    pool.release(page)
    assert (pool.num_free, pool.num_quarantined) == (0, 1)
    pool.launch(3)
    pool.retire(1)
    assert pool.num_free == 0
    pool.retire(2)
    assert (pool.num_free, pool.num_quarantined) == (1, 0)


def test_a_step_that_failed_out_of_order_still_waits_for_the_older_ones():
    pool = PagePool(2)
    page = pool.allocate()
    pool.launch(1)
    pool.launch(2)
    pool.release(page)
    pool.retire(2)
    assert pool.num_free == 0
    pool.retire(1)
    assert pool.num_free == 1


def test_a_quarantined_page_can_be_revived_and_freed_again():
    pool = PagePool(2)
    page = pool.allocate()
    pool.publish(page, b"k")
    pool.launch(1)
    pool.release(page)
    pool.hold(page)
    pool.launch(2)
    pool.release(page)
    pool.retire(1)
    assert pool.num_free == 0, "the second release came after step 2"
    pool.retire(2)
    assert pool.num_free == 1
    pool.check()


def test_the_first_page_with_some_contents_keeps_the_key():
    pool = PagePool(3)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"k")
    pool.publish(second, b"k")
    assert pool.find(b"k") == first
    pool.forget(b"k")
    assert pool.find(b"k") is None
    pool.check([first, second])


def test_check_finds_a_lost_reference():
    pool = PagePool(3)
    pool.allocate()
    with pytest.raises(AssertionError, match="references"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Random use of a small pool; `holders` is the truth about references, `contents` about keys."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(7)
        self.held: list[int] = []
        self.contents: dict[bytes, int] = {}
        self.next_step = 0
        self.flying: list[int] = []
        self.barriers: dict[int, set[int]] = {}
        """Steps that must retire before a page may be allocated."""

    @precondition(lambda self: self.pool.num_free)
    @rule()
    def allocate(self) -> None:
        page = self.pool.allocate()
        assert page != 0
        assert page not in self.held
        assert not self.barriers.pop(page, set())
        self.contents = {key: p for key, p in self.contents.items() if p != page}
        self.held.append(page)

    @rule(number=st.integers(0, 30), key=st.sampled_from([b"a", b"b", b"c"]))
    def publish(self, number: int, key: bytes) -> None:
        if self.held:
            page = self.held[number % len(self.held)]
            self.pool.publish(page, key)
            if key not in self.contents and page not in self.contents.values():
                self.contents[key] = page

    @rule(key=st.sampled_from([b"a", b"b", b"c"]))
    def hit(self, key: bytes) -> None:
        page = self.pool.find(key)
        assert page == self.contents.get(key)
        if page is not None:
            self.pool.hold(page)
            self.held.append(page)
            self.barriers.pop(page, None)

    @rule(number=st.integers(0, 30))
    def release(self, number: int) -> None:
        if self.held:
            page = self.held.pop(number % len(self.held))
            self.pool.release(page)
            if page not in self.held:
                self.barriers[page] = set(self.flying)

    @rule()
    def launch(self) -> None:
        self.pool.launch(self.next_step)
        self.flying.append(self.next_step)
        self.next_step += 1

    @rule(number=st.integers(0, 30))
    def retire(self, number: int) -> None:
        if self.flying:
            # Mostly in order; a failed step retires early.
            step = self.flying.pop(number % len(self.flying) if number > 20 else 0)
            self.pool.retire(step)
            for waits in self.barriers.values():
                waits.discard(step)

    @rule(key=st.sampled_from([b"a", b"b", b"c", None]))
    def forget(self, key: bytes | None) -> None:
        if key is None:
            self.pool.forget_all()
            self.contents.clear()
        else:
            self.pool.forget(key)
            self.contents.pop(key, None)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check(self.held)
        if not self.flying:
            assert self.pool.num_quarantined == 0
            assert self.pool.num_free == 6 - len(set(self.held))


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
