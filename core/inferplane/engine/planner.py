"""Fills one step: decode rows first, then prompt chunks within the budget; preempts when pages run out.

Knows the order of requests and what a step may hold; neither results nor messages.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from inferplane.engine.draft import Draft, Rows
from inferplane.engine.prefix import Hit
from inferplane.engine.request import RequestState, Status
from inferplane_api.step import NewRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.engine.limits import StepLimits
    from inferplane.engine.pages import PagePool
    from inferplane.engine.prefix import PrefixIndex
    from inferplane.engine.running import RunningSet
    from inferplane.engine.tables import PageTables
    from inferplane.engine.waiting import WaitingQueue

_NO_ROOM = "the cache cannot hold this request even when it runs alone"
_by_order = attrgetter("order")
_RESERVE_SHARE = 100
"""One page in this many is kept back from new requests while others decode."""


class _Obstacle(NamedTuple):
    """Why the head of the queue had to wait, so that the next step need not find out again."""

    request: RequestState
    amount: int
    """What there was too little of: free pages, or tokens of the step."""
    hit_length: int
    """Tokens of it that the cache held."""


class Planner:
    """The decisions of `Scheduler.schedule`, over collections that the scheduler shares with it."""

    def __init__(
        self,
        limits: StepLimits,
        pool: PagePool,
        tables: PageTables,
        prefix: PrefixIndex | None,
        waiting: WaitingQueue,
        running: RunningSet,
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._tables = tables
        self._prefix = prefix
        self._waiting = waiting
        self._running = running
        self._clock = clock
        self._oldest_flight: int | None = None
        self._prompt_turn = True
        self.max_tokens = limits.max_tokens
        """Most tokens of a step; below the limit's after a step was too large for the device's memory."""
        self._blocked: _Obstacle | None = None
        """The head of the queue lacked pages."""
        self._too_long: _Obstacle | None = None
        """The head of the queue had to wait for other prompts: it does not fit into a step whole."""
        self._started: list[RequestState] = []
        self.num_preemptions = 0
        self.num_queries = 0
        self.num_hits = 0

    def plan(self, step_id: int, oldest_flight: int | None, fail: Callable[[RequestState, str], None]) -> Draft:
        """Plan one step. `oldest_flight` is the oldest step that is not collected; `fail` ends a request that can never
        run, so that the engine goes on."""
        self._oldest_flight = oldest_flight
        self._running.compact()
        draft = Draft(step_id)
        if self._limits.by_priority:
            self._preempt_for_head()
        self._fill(draft)
        while draft.empty and oldest_flight is None and self._unblock(fail):
            self._fill(draft)
        return draft

    def take_started(self) -> list[RequestState]:
        """The requests that got their first slot since the last call."""
        started = self._started
        self._started = []
        return started

    def preempt(self, victim: RequestState, publish: bool = True) -> None:
        """Take slot and pages; what was computed stays findable (unless it is in doubt), the rest is computed again."""
        self._running.remove(victim)
        self._tables.release(victim, publish)
        victim.status = Status.WAITING
        victim.num_preemptions += 1
        self._waiting.push(victim)
        self.num_preemptions += 1

    def _fill(self, draft: Draft) -> None:
        draft.budget = self.max_tokens
        if self._limits.mixed_steps:
            self._plan_decodes(draft)
            self._plan_prompts(draft)
            return
        for _ in range(2):
            draft.kind = Rows.CHUNK if self._prompt_turn else Rows.SINGLE
            if draft.kind is Rows.SINGLE:
                self._plan_decodes(draft)
            self._plan_prompts(draft)
            self._prompt_turn = not self._prompt_turn
            if not draft.empty:
                return
        # Pages for one token only: a single-token row of a longer prompt fits either kind of step.
        draft.kind = Rows.SINGLE
        draft.budget = 1
        self._plan_prompts(draft)

    def _plan_decodes(self, draft: Draft) -> None:
        step_id = draft.step_id
        add_slot = draft.slots.append
        add_start = draft.starts.append
        add_row = draft.rows.append
        # Preemption takes requests from the end of this list while it is walked.
        for request in self._running.decoding:
            start = request.planned
            if start >= request.boundary and not self._cross_boundary(request, draft):
                continue
            add_slot(request.slot)
            add_start(start)
            add_row(request)
            request.planned = start + 1
            request.last_step = step_id
        draft.budget -= len(draft.rows)

    def _cross_boundary(self, request: RequestState, draft: Draft) -> bool:
        """Get the pages for the next token; False when the request has no row in this step."""
        if request.planned >= request.end:
            return False
        while not self._tables.grow(request, 1, draft.columns):
            need = self._tables.need(request, request.planned + 1)
            if need <= self._pool.num_free + self._pool.num_quarantined:
                return False
            victim = self._running.last()
            if victim is None or victim is request:
                if len(self._running) > 1:
                    self.preempt(request)
                return False
            self.preempt(victim)
        request.boundary = min(self._tables.boundary(request), request.end)
        return True

    def _plan_prompts(self, draft: Draft) -> None:
        prefilling = self._running.prefilling
        if self._limits.by_priority and prefilling:
            self._admit(draft, ahead_of=prefilling[0])
        pending = [request for request in prefilling if request.last_step != draft.step_id]
        for index, request in enumerate(pending):
            share = self._share(draft, len(pending) - index)
            count = self._chunk(len(request.tokens) - request.planned, share)
            if not draft.takes(count):
                continue
            count = self._tables.fitting(request, count, self._oldest_flight is not None)
            if count == 0:
                # New requests must not take the pages that an older one waits for.
                return
            if draft.takes(count):
                self._add_chunk(request, count, draft)
        self._admit(draft)

    def _share(self, draft: Draft, num_prompts: int) -> int:
        """Tokens for the next of so many prompts. A prompt that needs less leaves the rest to those behind it, and one
        share is for what waits: no prompt, however long, keeps the others from moving."""
        if self._limits.by_priority:
            return draft.budget
        return -(-draft.budget // (num_prompts + self._has_newcomer(draft)))

    def _has_newcomer(self, draft: Draft) -> bool:
        """True when a waiting request could start in this step if it had a part of the budget."""
        head = self._waiting.peek()
        if head is None or not self._running.has_free_slot or self._in_flight(head):
            return False
        if self._at_partial_limit() and len(head.tokens) > self._limits.max_chunk:
            return self._waiting.peek_short() is not None
        return not self._lacks_pages(head)

    def _chunk(self, remaining: int, most: int) -> int:
        """Longest next chunk that limits and budget allow."""
        count = min(remaining, self._limits.max_chunk, most)
        return count if self._limits.chunking or count == remaining else 0

    def _add_chunk(self, request: RequestState, count: int, draft: Draft) -> None:
        start = request.planned
        self._tables.grow(request, count, draft.columns)
        request.planned = start + count
        request.last_step = draft.step_id
        last = request.planned >= len(request.tokens)
        draft.add_prompt(request, start, count, last and request.samples)
        if last:
            request.boundary = min(self._tables.boundary(request), request.end)
            self._running.begin_decoding(request)

    def _admit(self, draft: Draft, ahead_of: RequestState | None = None) -> None:
        """Start waiting requests in their order until one has to wait."""
        while draft.budget > 0 and self._running.has_free_slot:
            head = self._waiting.peek()
            if head is None or self._in_flight(head):
                return
            if ahead_of is not None and head.order[0] >= ahead_of.order[0]:
                return
            if self._start(head, draft, exempt=ahead_of is not None):
                self._waiting.remove(head)
            elif not self._start_short(head, draft):
                return

    def _start_short(self, head: RequestState, draft: Draft) -> bool:
        """The head waits for other long prompts: start a short one behind it, which fits into this step whole."""
        waits_for_prompts = self._too_long is not None and self._too_long.request is head and self._at_partial_limit()
        short = self._waiting.peek_short() if waits_for_prompts and not self._limits.by_priority else None
        if short is None or short is head or self._in_flight(short):
            return False
        if len(short.tokens) > self._limits.max_chunk or len(short.tokens) > draft.budget:
            return False
        if not self._start(short, draft, exempt=False):
            return False
        self._waiting.remove(short)
        return True

    def _start(self, head: RequestState, draft: Draft, exempt: bool) -> bool:
        if self._is_blocked(head, draft.budget):
            return False
        hit = self._find_hit(head)
        remaining = len(head.tokens) - hit.length
        count = self._chunk(remaining, draft.budget)
        if count < remaining and not exempt and self._at_partial_limit():
            self._too_long = _Obstacle(head, draft.budget, hit.length)
            return False
        if not draft.takes(count):
            return False
        if self._tables.need_to_start(head, hit) + self._reserve(head) > self._pool.num_free:
            self._blocked = _Obstacle(head, self._pool.num_free, hit.length)
            return False
        self._tables.adopt(head, hit)
        count = self._tables.fitting(head, count, self._oldest_flight is not None)
        if not draft.takes(count):
            self._tables.release(head, publish=False)
            return False
        self._running.start(head)
        self._add_request(head, hit, draft)
        self._add_chunk(head, count, draft)
        return True

    def _add_request(self, request: RequestState, hit: Hit, draft: Draft) -> None:
        message = request.request
        if request.num_preemptions == 0:
            self.num_queries += request.num_prompt
            self.num_hits += hit.length
            request.num_cached = hit.length
            request.queue_seconds = self._clock() - request.arrival
            self._started.append(request)
        draft.added.append(
            NewRequest(
                slot=request.slot,
                request_id=request.request_id,
                token_ids=list(request.tokens),
                num_prompt_tokens=request.num_prompt,
                params=message.params,
                seed=message.seed,
                eos_token_ids=() if message.params.ignore_eos else message.eos_token_ids,
                pooling=message.pooling,
            )
        )
        self._tables.put_adopted(request, hit, draft.columns)

    def _find_hit(self, request: RequestState) -> Hit:
        # At least one token must be computed.
        if self._prefix is None or not request.reads_cache:
            return self._tables.no_hit()
        return self._prefix.find(request, len(request.tokens) - 1)

    def _reserve(self, head: RequestState) -> int:
        """Pages kept back for older requests, whose next tokens would otherwise preempt this one at once."""
        last = self._running.last()
        if last is None or last.order > head.order:
            return 0
        unfinished = sum(map(self._tables.outstanding, self._running.prefilling))
        return min(len(self._running), self._pool.num_pages // _RESERVE_SHARE) + unfinished

    def _at_partial_limit(self) -> bool:
        return len(self._running.prefilling) >= self._limits.max_partial_prefills

    def _is_blocked(self, head: RequestState, budget: int) -> bool:
        """True when nothing has changed that made the head of the queue wait; saves looking for its prefix again."""
        if not len(self._running):
            return False
        known = self._too_long
        if known is not None and known.request is head and self._at_partial_limit():
            return budget <= known.amount and not self._has_more(known)
        return self._lacks_pages(head)

    def _lacks_pages(self, head: RequestState) -> bool:
        known = self._blocked
        if known is None or known.request is not head or not len(self._running):
            return False
        return self._pool.num_free <= known.amount and not self._has_more(known)

    def _has_more(self, known: _Obstacle) -> bool:
        """True when pages that were published since make the request's hit longer."""
        request = known.request
        if self._prefix is None or not request.reads_cache:
            return False
        return self._prefix.has_more(request, known.hit_length, len(request.tokens) - 1)

    def _in_flight(self, request: RequestState) -> bool:
        return self._oldest_flight is not None and request.last_step >= self._oldest_flight

    def _preempt_for_head(self) -> None:
        """Make room for a waiting request by preempting running ones of lower priority, where that makes enough."""
        head = self._waiting.peek()
        if head is None or self._in_flight(head):
            return
        lower = sorted((each for each in self._running if each.order[0] > head.order[0]), key=_by_order, reverse=True)
        if not lower:
            return
        others = len(self._running) - len(lower)
        need = self._tables.need_to_start(head, self._find_hit(head))
        need += min(others, self._pool.num_pages // _RESERVE_SHARE)
        available = self._pool.num_free + self._pool.num_quarantined
        has_slot = self._running.has_free_slot
        victims: list[RequestState] = []
        for request in lower:
            if has_slot and need <= available:
                break
            victims.append(request)
            has_slot = True
            available += self._tables.releasable(request)
        if need > available:
            return
        for victim in victims:
            self.preempt(victim)

    def _unblock(self, fail: Callable[[RequestState, str], None]) -> bool:
        """Nothing runs and nothing is in flight: let go of the last request, so that the others move. False when
        nothing is left to try."""
        self._blocked = None
        last = self._running.last()
        if last is not None and len(self._running) > 1:
            self.preempt(last)
            return True
        request = last or self._waiting.peek()
        if request is None:
            return False
        fail(request, _NO_ROOM)
        self._running.compact()
        return True
