"""The page tables of running requests: what a request takes from the pool, step by step. Decides no order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.engine.prefix import Hit
from inferplane.plan.capacity import pages_of_group
from inferplane_api.kv import NULL_PAGE

if TYPE_CHECKING:
    from inferplane.engine.pages import PagePool
    from inferplane.engine.prefix import PrefixIndex
    from inferplane.engine.request import RequestState
    from inferplane_api.kv import KVGeometry


class PageColumns:
    """The page-table changes of one step: the four `page_*` columns of a StepPlan."""

    __slots__ = ("groups", "ids", "indices", "slots")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.groups: list[int] = []
        self.indices: list[int] = []
        self.ids: list[int] = []

    def put(self, slot: int, group: int, index: int, page: int) -> None:
        """In `slot`, entry `index` of the table of `group` becomes `page`."""
        self.slots.append(slot)
        self.groups.append(group)
        self.indices.append(index)
        self.ids.append(page)


class PageTables:
    """Takes, slides, publishes and releases the pages of requests; one table per request and group."""

    def __init__(self, geometry: KVGeometry, pool: PagePool, prefix: PrefixIndex | None, chunking: bool) -> None:
        self._pool = pool
        self._prefix = prefix
        self._chunking = chunking
        self._groups = tuple(geometry.groups)
        self._sizes = [group.tokens_per_page for group in geometry.groups]
        self._windows = [(i, group.window) for i, group in enumerate(geometry.groups) if group.window is not None]

    def no_hit(self) -> Hit:
        """Nothing is cached."""
        return Hit(0, [0] * len(self._sizes), [[] for _ in self._sizes])

    def need_to_start(self, request: RequestState, hit: Hit) -> int:
        """Free pages that must be there before it makes sense to start: those for all tokens known now.

        Pages of the hit count where holding them takes them from the free list.
        """
        num_tokens = len(request.tokens)
        need = 0
        for index, group in enumerate(self._groups):
            hit_pages = hit.pages[index]
            ahead = -(-num_tokens // group.tokens_per_page) - hit.first[index]
            total = min(ahead, pages_of_group(group, num_tokens, self._chunking))
            need += max(0, total - len(hit_pages)) + sum(map(self._pool.is_free, hit_pages))
        return need

    def adopt(self, request: RequestState, hit: Hit) -> None:
        """Begin the tables with the pages of a hit (possibly none) and hold them."""
        request.first = list(hit.first)
        request.nulled = list(hit.first)
        request.pages = [[NULL_PAGE] * first + pages for first, pages in zip(hit.first, hit.pages, strict=True)]
        for pages in hit.pages:
            for page in pages:
                self._pool.hold(page)
        request.planned = request.published = hit.length

    def put_adopted(self, request: RequestState, hit: Hit, columns: PageColumns) -> None:
        """Tell the runner of the pages of a hit; called right after `adopt`, when the slot is certain."""
        for index, pages in enumerate(hit.pages):
            for i, page in enumerate(pages, hit.first[index]):
                columns.put(request.slot, index, i, page)

    def need(self, request: RequestState, end: int) -> int:
        """Pages that are missing to hold tokens up to `end`."""
        pages = request.pages
        return sum(max(0, -(-end // size) - len(pages[i])) for i, size in enumerate(self._sizes))

    def outstanding(self, request: RequestState) -> int:
        """Pages that a request in a slot will still take for the tokens known now."""
        num_tokens = len(request.tokens)
        total = 0
        for index, group in enumerate(self._groups):
            held = len(request.pages[index]) - request.first[index]
            ahead = -(-num_tokens // group.tokens_per_page) - len(request.pages[index])
            total += max(0, min(ahead, pages_of_group(group, num_tokens, self._chunking) - held))
        return total

    def releasable(self, request: RequestState) -> int:
        """Pages that nobody else holds: those that preempting the request gives back."""
        return sum(self._pool.is_only_holder(page) for table in request.pages for page in table if page != NULL_PAGE)

    def fitting(self, request: RequestState, count: int, may_wait: bool) -> int:
        """How many of the next `count` tokens can get their pages now; 0 means wait.

        Entries that left a window are freed first. When the pages in quarantine would do, waiting for them beats a
        smaller chunk.
        """
        start = request.planned
        self._slide(request, start)
        free = self._pool.num_free
        need = self.need(request, start + count)
        if need <= free:
            return count
        if not self._chunking or (may_wait and need <= free + self._pool.num_quarantined):
            return 0
        low, high = 0, count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.need(request, start + middle) <= free:
                low = middle
            else:
                high = middle - 1
        return low

    def grow(self, request: RequestState, count: int, columns: PageColumns) -> bool:
        """Take the pages for the next `count` tokens, all or none, and publish those that are complete and known."""
        start = request.planned
        end = start + count
        known = len(request.tokens)
        if self._prefix is not None:
            self._prefix.publish(request, min(start, known))
        self._slide(request, start)
        if self.need(request, end) > self._pool.num_free:
            return False
        slot = request.slot
        for group, size in enumerate(self._sizes):
            table = request.pages[group]
            for i in range(request.nulled[group], request.first[group]):
                columns.put(slot, group, i, NULL_PAGE)
            request.nulled[group] = request.first[group]
            for i in range(len(table), -(-end // size)):
                page = self._pool.allocate()
                table.append(page)
                columns.put(slot, group, i, page)
        if self._prefix is not None:
            self._prefix.publish(request, min(end, known))
        return True

    def boundary(self, request: RequestState) -> int:
        """The first position that lacks a page in some group; without groups no position does."""
        held = (len(table) * size for table, size in zip(request.pages, self._sizes, strict=True))
        return min(held, default=request.limit)

    def release(self, request: RequestState, publish: bool = True) -> None:
        """Give every page back, the end of the prompt before its beginning, so that it is evicted first."""
        if publish and self._prefix is not None and request.pages:
            self._prefix.publish(request, min(request.planned, len(request.tokens)))
        release = self._pool.release
        for group, table in enumerate(request.pages):
            for i in range(len(table) - 1, request.first[group] - 1, -1):
                release(table[i])
        request.pages = []
        request.first = []
        request.nulled = []
        request.planned = request.published = 0

    def _slide(self, request: RequestState, start: int) -> None:
        """Free the pages that no query from `start` on sees."""
        for group, window in self._windows:
            table = request.pages[group]
            keep = max(0, start - (window - 1)) // self._sizes[group]
            for i in range(request.first[group], keep):
                self._pool.release(table[i])
                table[i] = NULL_PAGE
            request.first[group] = max(keep, request.first[group])
