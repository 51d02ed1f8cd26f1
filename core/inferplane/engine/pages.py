"""The pool of equal-byte pages: reference counts, LRU free list, quarantine, cached contents.

Knows pages and opaque keys, neither tokens nor requests.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from inferplane_api.kv import NULL_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

_LISTED = -1
"""Barrier of a page that is in use or in the free list."""


class PagePool:
    """Pages 1 … num_pages - 1, each in one of three states.

    used: its reference count is above zero. quarantined: nobody refers to it, but a step launched before the last
    reference went may still touch it. free: allocatable, oldest first; a free or quarantined page with a key still
    holds that key's contents and can be revived by `hold` until it is allocated for something else.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = 0
        self.num_quarantined = 0
        self._references = [0] * num_pages
        self._keys: list[bytes | None] = [None] * num_pages
        self._pages: dict[bytes, int] = {}
        # A circular list threaded through two arrays; the null page, never free, is its head.
        self._next = [0] * num_pages
        self._previous = [0] * num_pages
        self._barriers = [_LISTED] * num_pages
        self._quarantine: deque[tuple[int, int]] = deque()
        self._outstanding: deque[int] = deque()
        self._last_launched = _LISTED
        for page in range(1, num_pages):
            self._append(page)

    @property
    def usage(self) -> float:
        """Share of the pages that a request holds."""
        total = self.num_pages - 1
        return (total - self.num_free - self.num_quarantined) / total if total > 0 else 0.0

    @property
    def num_cached(self) -> int:
        """Pages that a key finds."""
        return len(self._pages)

    def allocate(self) -> int:
        """Take the page that was free for the longest time, with one reference; its contents are forgotten.

        The caller checks `num_free` first; with nothing free the null page comes back.
        """
        page = self._next[NULL_PAGE]
        if page == NULL_PAGE:
            return NULL_PAGE
        self._unlink(page)
        self._references[page] = 1
        self._unkey(page)
        return page

    def hold(self, page: int) -> None:
        """Add a reference; revives a free or quarantined page."""
        if self._references[page] == 0:
            if self._barriers[page] == _LISTED:
                self._unlink(page)
            else:
                self._barriers[page] = _LISTED
                self.num_quarantined -= 1
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Give a reference back; the last one frees the page once every step launched until now has retired."""
        references = self._references[page] = self._references[page] - 1
        if references:
            return
        if self._outstanding:
            barrier = self._last_launched
            self._barriers[page] = barrier
            self._quarantine.append((barrier, page))
            self.num_quarantined += 1
        else:
            self._list(page)

    def launch(self, step_id: int) -> None:
        """A step that may touch pages was launched; ids ascend."""
        self._outstanding.append(step_id)
        self._last_launched = step_id

    def retire(self, step_id: int) -> None:
        """A launched step is over (also a failed one, out of order); unknown ids are ignored."""
        outstanding = self._outstanding
        if outstanding and outstanding[0] == step_id:
            outstanding.popleft()
        elif step_id in outstanding:
            outstanding.remove(step_id)
        horizon = outstanding[0] if outstanding else self._last_launched + 1
        quarantine = self._quarantine
        while quarantine and quarantine[0][0] < horizon:
            barrier, page = quarantine.popleft()
            # A page that was revived meanwhile has left an entry behind.
            if self._barriers[page] == barrier:
                self._barriers[page] = _LISTED
                self.num_quarantined -= 1
                self._list(page)

    def is_free(self, page: int) -> bool:
        """True when holding the page would take it from the free list."""
        return self._references[page] == 0 and self._barriers[page] == _LISTED

    def is_only_holder(self, page: int) -> bool:
        """True when whoever holds the page is alone with it."""
        return self._references[page] == 1

    def find(self, key: bytes) -> int | None:
        """The page with the contents of `key`."""
        return self._pages.get(key)

    def publish(self, page: int, key: bytes) -> None:
        """From now on `key` finds this page, unless it finds another already."""
        if key not in self._pages and self._keys[page] is None:
            self._pages[key] = page
            self._keys[page] = key

    def forget(self, key: bytes) -> None:
        """Nothing finds `key` any more; whoever holds the page keeps it."""
        page = self._pages.get(key)
        if page is not None:
            self._unkey(page)

    def forget_all(self) -> None:
        """Forget every key."""
        for page in self._pages.values():
            self._keys[page] = None
        self._pages.clear()

    def check(self, held: Iterable[int] = ()) -> None:
        """Raise AssertionError unless the books balance; `held` lists every reference that owners hold. For tests."""
        expected = Counter(held)
        free = []
        page = self._next[NULL_PAGE]
        while page != NULL_PAGE:
            assert self._previous[self._next[page]] == page, f"free list is broken at page {page}"
            free.append(page)
            page = self._next[page]
        quarantined = [p for p in range(1, self.num_pages) if self._barriers[p] != _LISTED]
        used = [p for p in range(1, self.num_pages) if self._references[p] > 0]
        assert len(free) == self.num_free, "count of free pages"
        assert len(quarantined) == self.num_quarantined, "count of quarantined pages"
        assert sorted(free + quarantined + used) == list(range(1, self.num_pages)), "each page has exactly one state"
        for p in range(self.num_pages):
            assert self._references[p] == expected[p], f"page {p}: {self._references[p]} references, {expected[p]} held"
        assert self._pages == {key: p for p, key in enumerate(self._keys) if key is not None}, "keys and pages agree"

    def _list(self, page: int) -> None:
        # A page without a key is worth nothing: it goes first.
        if self._keys[page] is None:
            self._insert(page, NULL_PAGE, self._next[NULL_PAGE])
        else:
            self._append(page)

    def _append(self, page: int) -> None:
        self._insert(page, self._previous[NULL_PAGE], NULL_PAGE)

    def _insert(self, page: int, before: int, after: int) -> None:
        self._next[before] = page
        self._previous[after] = page
        self._previous[page] = before
        self._next[page] = after
        self.num_free += 1

    def _unlink(self, page: int) -> None:
        before = self._previous[page]
        after = self._next[page]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

    def _unkey(self, page: int) -> None:
        key = self._keys[page]
        if key is not None:
            del self._pages[key]
            self._keys[page] = None
