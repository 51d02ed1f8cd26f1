"""Requests in, step plans out; step results in, deltas out. Knows no device and no text.

`schedule` may run ahead of `update` by several steps: planned positions and confirmed tokens are kept apart.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from typing import TYPE_CHECKING

from inferplane.engine.draft import Flight, complete
from inferplane.engine.fairness import FairShares
from inferplane.engine.outcome import accept, error_delta, make_delta, pooled_delta, store_prompt_logprobs
from inferplane.engine.pages import PagePool
from inferplane.engine.planner import Planner
from inferplane.engine.prefix import PrefixIndex
from inferplane.engine.request import NO_SLOT, RequestState, Status
from inferplane.engine.running import RunningSet
from inferplane.engine.stops import Finish
from inferplane.engine.tables import PageTables
from inferplane.engine.waiting import WaitingQueue
from inferplane.messages import Delta, Stats
from inferplane.plan.capacity import pages_of_request
from inferplane_api.step import StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inferplane.engine.limits import StepLimits
    from inferplane.messages import Request
    from inferplane_api.kv import KVGeometry
    from inferplane_api.step import StepResult, TokenLogprobs

CORRUPTED = "logits were not finite, or nothing was left to draw from"
CORRUPTED_VECTOR = "the pooled vector was not finite"
NOT_POOLED = "the platform's runner pools no prompts"
_LATE = "the request waited {:.1f} s to be started, longer than it may"
_SHORT_SHARE = 4
"""A prompt of at most one fourth of a step's tokens is short: it passes long ones that wait for each other."""


class Scheduler:
    """Drives requests through slots, pages and steps. Single-threaded; every call returns at once."""

    def __init__(
        self,
        limits: StepLimits,
        geometry: KVGeometry,
        num_pages: int,
        *,
        prefix_caching: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.pool = PagePool(num_pages)
        self.waiting = WaitingQueue(short=max(1, limits.max_tokens // _SHORT_SHARE))
        self.running = RunningSet(limits.max_sequences)
        self._geometry = geometry
        self._clock = clock
        self._prefix = PrefixIndex(geometry, self.pool) if prefix_caching else None
        self._tables = PageTables(geometry, self.pool, self._prefix, limits.chunking)
        self._planner = Planner(limits, self.pool, self._tables, self._prefix, self.waiting, self.running, clock)
        self._requests: dict[tuple[str, str], RequestState] = {}
        self._shares = FairShares() if limits.by_share else None
        self._deadlines: list[tuple[float, int, RequestState]] = []
        self._started: list[tuple[str, str]] = []
        self._tokens_waiting = 0
        self._num_held = 0
        """Requests that wait for another's prompt and are not in the queue yet."""
        self._flights: deque[Flight] = deque()
        self._notices: list[tuple[str, Delta]] = []
        self._next_step = 0
        self._num_submitted = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._corrupted_requests = 0
        self._num_steps = 0

    @property
    def num_requests(self) -> int:
        """Requests that are neither finished nor failed."""
        return len(self._requests)

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not updated."""
        return len(self._flights)

    @property
    def has_notices(self) -> bool:
        """True when deltas wait that no step produced."""
        return bool(self._notices)

    @property
    def has_late(self) -> bool:
        """True when a request may have waited for too long."""
        return bool(self._deadlines) and self._deadlines[0][0] <= self._clock()

    def submit(self, request: Request) -> None:
        """Queue a request. One that can never run is answered with an error delta, never raised."""
        key = (request.client_id, request.request_id)
        priority = request.priority if self.limits.by_priority else 0
        state = RequestState(request, (priority, self._num_submitted), self.limits.max_model_len, self._clock())
        problem = "a request with this id is running" if key in self._requests else self._misfit(state)
        if problem is not None:
            self._notices.append((request.client_id, error_delta(request.request_id, problem, "refused")))
            return
        if self._shares is not None:
            state.order = (self._shares.enter(request.share, state.num_prompt), self._num_submitted)
        if request.queue_timeout is not None:
            heapq.heappush(self._deadlines, (state.arrival + request.queue_timeout, self._num_submitted, state))
        self._num_submitted += 1
        self._tokens_waiting += state.num_prompt
        self._requests[key] = state
        leader = self._requests.get((request.client_id, request.follows)) if self._prefix is not None else None
        if leader is not None and leader.status in (Status.WAITING, Status.PREFILLING) and leader.leader is None:
            state.leader = leader
            leader.followers.append(state)
            self._num_held += 1
        else:
            self.waiting.push(state)

    def expire(self) -> None:
        """End requests that waited longer than they may without having started."""
        while self.has_late:
            _, _, state = heapq.heappop(self._deadlines)
            if not state.done and state.queue_seconds is None:
                self._fail(state, _LATE.format(self._clock() - state.arrival), "queue_timeout")

    def abort(self, client_id: str, request_ids: Iterable[str]) -> None:
        """End requests now, wherever they are; unknown ids are ignored."""
        for request_id in request_ids:
            state = self._requests.get((client_id, request_id))
            if state is not None:
                self._end(state)
                self._notices.append((client_id, Delta(request_id=request_id, finish_reason="abort")))

    def abort_client(self, client_id: str) -> None:
        """End all requests of one client."""
        self.abort(client_id, [request_id for owner, request_id in self._requests if owner == client_id])

    def take_notices(self) -> list[tuple[str, Delta]]:
        """(client id, delta) of aborts and failures since the last call."""
        notices = self._notices
        self._notices = []
        return notices

    def take_started(self) -> list[tuple[str, str]]:
        """(client id, request id) of the requests that got their first slot since the last call."""
        started = self._started
        self._started = []
        return started

    def schedule(self) -> StepPlan:
        """Plan the next step, which the caller launches unless it is empty. An empty plan changes nothing: collect a
        step that is in flight, or wait for requests."""
        oldest = self._flights[0].plan.step_id if self._flights else None
        draft = self._planner.plan(self._next_step, oldest, self._fail_for_room)
        self._note_started()
        if draft.empty:
            return StepPlan(step_id=self._next_step)
        flight = complete(draft, self.running.take_removed())
        self._flights.append(flight)
        if self._num_held:
            for request in flight.rows:
                if request.followers and request.status is Status.DECODING:
                    self._let_go(request)
        self.pool.launch(self._next_step)
        self._next_step += 1
        return flight.plan

    def update(self, plan: StepPlan, result: StepResult) -> list[tuple[str, Delta]]:
        """Confirm what the oldest step in flight gave; returns (client id, delta) for every request that gained."""
        flight = self._flights.popleft()
        self.pool.retire(plan.step_id)
        self._num_steps += 1
        outputs: list[tuple[str, Delta]] = []
        emit = outputs.append
        if result.corrupted or result.failed or result.refused:
            self._fail_rows(flight, result)
        for row, request in flight.watched:
            self._update_prompt(request, row, plan, result, emit)
        logprobs = result.logprobs or [None] * len(flight.sampled)
        fast = result.logprobs is None
        generated = 0
        for index, (request, new) in enumerate(zip(flight.sampled, result.tokens, strict=True)):
            if request.done:
                continue
            if fast and len(new) == 1 and not request.fresh:
                tokens = request.tokens
                token = new[0]
                if token not in request.stop_ids and len(tokens) + 1 < request.fast_limit:
                    tokens.append(token)
                    generated += 1
                    emit((request.client_id, Delta(request_id=request.request_id, token_ids=new)))
                    continue
            generated += self._confirm(request, new, logprobs[index], emit)
        self._generation_tokens += generated
        return outputs

    def fail_from(self, step_id: int, error: str, code: str) -> None:
        """A step could not be run or collected: end its requests and those of every later step in flight."""
        for request in self._drop_from(step_id):
            self._fail(request, error, code)

    def retry_from(self, step_id: int, max_tokens: int) -> None:
        """A step and those behind it were too large: put their requests back into the queue, to be computed again in
        steps of at most `max_tokens` until `allow` says otherwise."""
        self._planner.max_tokens = max_tokens
        for request in self._drop_from(step_id):
            if request.slot != NO_SLOT:
                self._planner.preempt(request, publish=False)

    @property
    def max_tokens(self) -> int:
        """Most tokens of a step at present."""
        return self._planner.max_tokens

    def allow(self, max_tokens: int) -> None:
        """From now on a step may hold so many tokens, as far as the limits allow."""
        self._planner.max_tokens = min(max_tokens, self.limits.max_tokens)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running requests keep their pages."""
        self.pool.forget_all()

    def stats(self) -> Stats:
        """Counters since start and gauges of now."""
        return Stats(
            num_requests_running=self.num_requests - len(self.waiting) - self._num_held,
            num_requests_waiting=len(self.waiting) + self._num_held,
            num_tokens_waiting=self._tokens_waiting,
            kv_cache_usage=self.pool.usage,
            num_preemptions=self._planner.num_preemptions,
            prefix_cache_queries=self._planner.num_queries,
            prefix_cache_hits=self._planner.num_hits,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            corrupted_requests=self._corrupted_requests,
            num_steps=self._num_steps,
        )

    def check(self) -> None:
        """Raise AssertionError unless pages and owners agree. For tests."""
        live = self._requests.values()
        self.pool.check(page for state in live for table in state.pages for page in table if page)

    def _misfit(self, request: RequestState) -> str | None:
        """Why the request can never run."""
        limits = self.limits
        if request.num_prompt == 0:
            return "the prompt is empty"
        room = limits.max_model_len - (1 if request.request.params.max_tokens != 0 else 0)
        if request.num_prompt > room:
            return f"the prompt has {request.num_prompt} tokens; the context of {limits.max_model_len} leaves {room}"
        longest = request.computed_limit
        if not limits.chunking and longest > limits.max_chunk:
            return f"the model takes a prompt in one piece, and {longest} tokens exceed a step's {limits.max_chunk}"
        need = pages_of_request(self._geometry, longest, limits.chunking)
        if need > self.pool.num_pages - 1:
            return f"the request needs up to {need} cache pages, and there are {self.pool.num_pages - 1}"
        return None

    def _end(self, request: RequestState, publish: bool = True) -> None:
        """The request leaves; what is in flight for it will be ignored."""
        request.done = True
        request.status = Status.DONE
        del self._requests[request.client_id, request.request_id]
        self._tables.release(request, publish)
        if request.queue_seconds is None:
            self._tokens_waiting -= request.num_prompt
        if self._shares is not None:
            unused = -request.num_prompt if request.queue_seconds is None else len(request.tokens) - request.num_prompt
            self._shares.charge(request.request.share, unused)
        if request.followers:
            self._let_go(request)
        if request.leader is not None:
            request.leader.followers.remove(request)
            request.leader = None
            self._num_held -= 1
        elif request.slot == NO_SLOT:
            self.waiting.remove(request)
        else:
            self.running.give_up_slot(request)

    def _let_go(self, leader: RequestState) -> None:
        """The prompt of those that followed is in the cache, or will never be: they take their places in the queue."""
        for request in leader.followers:
            request.leader = None
            self.waiting.push(request)
        self._num_held -= len(leader.followers)
        leader.followers = []

    def _note_started(self) -> None:
        for request in self._planner.take_started():
            self._started.append((request.client_id, request.request_id))
            self._tokens_waiting -= request.num_prompt
            if self._shares is not None:
                self._shares.begin(request.order[0])

    def _drop_from(self, step_id: int) -> list[RequestState]:
        """Forget a step and every later one in flight; returns their requests that are alive.

        Whatever these steps wrote is in doubt, so the prefix index is dropped as a whole. Slots that they were to
        remove are named again in the next plan.
        """
        self.pool.forget_all()
        rows: dict[RequestState, None] = {}
        while self._flights and self._flights[-1].plan.step_id >= step_id:
            flight = self._flights.pop()
            self.pool.retire(flight.plan.step_id)
            self.running.removed = list(dict.fromkeys([*flight.plan.removed, *self.running.removed]))
            rows.update(dict.fromkeys(request for request in flight.rows if not request.done))
        return list(rows)

    def _fail(self, request: RequestState, error: str, code: str) -> None:
        self._end(request, publish=False)
        self._notices.append((request.client_id, error_delta(request.request_id, error, code)))

    def _fail_for_room(self, request: RequestState, error: str) -> None:
        self._fail(request, error, "no_room")

    def _fail_rows(self, flight: Flight, result: StepResult) -> None:
        for causes, code in ((result.failed, "logits_processor"), (result.refused, "bad_processor_argument")):
            for index, cause in causes.items():
                request = flight.sampled[index]
                if not request.done:
                    self._fail(request, cause, code)
        for index in result.corrupted:
            request = flight.sampled[index]
            if not request.done:
                self._corrupted_requests += 1
                if self._prefix is not None:
                    self._prefix.forget(request)
                self._fail(request, CORRUPTED, "corrupted")

    def _confirm(
        self,
        request: RequestState,
        new: list[int],
        logprobs: list[TokenLogprobs] | None,
        emit: Callable[[tuple[str, Delta]], None],
    ) -> int:
        """The careful way to take a row's tokens; returns how many counted."""
        tokens, logprobs, finish = accept(request, new, logprobs)
        if not tokens:
            return 0
        if request.fresh:
            self._prompt_tokens += request.num_prompt
        emit((request.client_id, make_delta(request, tokens, logprobs, finish)))
        if finish is not None:
            self._end(request)
        return len(tokens)

    def _update_prompt(
        self,
        request: RequestState,
        row: int,
        plan: StepPlan,
        result: StepResult,
        emit: Callable[[tuple[str, Delta]], None],
    ) -> None:
        """Keep prompt log-probabilities; a request that only scores or pools its prompt ends with it."""
        if request.done:
            return
        entries = result.prompt_logprobs and result.prompt_logprobs.get(row)
        if entries:
            store_prompt_logprobs(request, plan.starts[row], entries)
        if not request.samples and plan.starts[row] + plan.counts[row] >= request.num_prompt:
            if request.request.pooling is not None:
                self._take_vector(request, (result.pooled or {}).get(row), emit)
                return
            self._prompt_tokens += request.num_prompt
            emit((request.client_id, make_delta(request, [], None, Finish("length"))))
            self._end(request)

    def _take_vector(
        self, request: RequestState, vector: list[float] | None, emit: Callable[[tuple[str, Delta]], None]
    ) -> None:
        """The prompt of a pooled request is computed."""
        if vector is None:
            self._fail(request, NOT_POOLED, "step_failed")
            return
        delta = pooled_delta(request, vector)
        if delta is None:
            self._corrupted_requests += 1
            if self._prefix is not None:
                self._prefix.forget(request)
            self._fail(request, CORRUPTED_VECTOR, "corrupted")
            return
        self._prompt_tokens += request.num_prompt
        emit((request.client_id, delta))
        self._end(request)
