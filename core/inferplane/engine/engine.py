"""The overlap loop: schedule, launch, sample, collect, update. Knows a Runner by its protocol, and no transport."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from inferplane.engine.limits import step_limits
from inferplane.engine.pace import Pace
from inferplane.engine.scheduler import Scheduler
from inferplane.engine.step_failure import describe, is_out_of_memory
from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.metrics.names import STEP_TOKENS
from inferplane.plan.capacity import fit_capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inferplane.messages import Delta, Request, Stats
    from inferplane.plan.types import Plan
    from inferplane_api.runner import Runner
    from inferplane_api.step import StepPlan

MAX_FAILED_STEPS = 3
"""Failed steps in a row after which the engine gives up."""

GOOD_STEPS = 64
"""Steps without running out of memory after which they may be twice as large again; more after every relapse."""

_logger = get_logger("engine")


class _Launched(NamedTuple):
    plan: StepPlan
    handle: Any
    at: float


class Engine:
    """Serves requests with one runner, from one thread; others may read `steps_completed` and `oldest_launch`."""

    def __init__(self, plan: Plan, runner: Runner, num_pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`runner` is loaded and has allocated `num_pages` (null page included).

        Raises InferplaneError when the pages do not hold one request of the context that the user asked for.
        """
        self.capacity = fit_capacity(plan, num_pages)
        limits = step_limits(plan, self.capacity.max_model_len)
        caching = plan.prefix_caching and "no_prefix_cache" not in plan.model.features
        self._scheduler = Scheduler(limits, plan.geometry, num_pages, prefix_caching=caching, clock=clock)
        self._runner = runner
        self._queue_depth = max(1, plan.scheduling.queue_depth)
        self._clock = clock
        self._launched: deque[_Launched] = deque()
        self._paused = False
        self._failed_steps = 0
        self._good_steps = 0
        self._good_steps_wanted = GOOD_STEPS
        self.steps_completed = 0
        """Steps collected since start."""
        self.oldest_launch: float | None = None
        """When, by the engine's clock, the oldest step in flight was launched; None while none is."""
        self.expected_seconds = 0.0
        """What that step should take."""
        self.pace = Pace()
        self._step_tokens = [0] * (len(STEP_TOKENS) + 1)
        self._step_tokens_sum = 0
        self._controls: dict[str, Callable[..., Any]] = {
            "reset_prefix_cache": self._reset_prefix_cache,
            "stats": self._stats,
            "pause": self._pause,
            "resume": self._resume,
        }

    def submit(self, request: Request) -> None:
        """Queue a request; one that can never run is answered by an error delta of the next step."""
        self._scheduler.submit(request)

    def abort(self, client_id: str, request_ids: Iterable[str]) -> None:
        """End requests; each that was alive gets a delta with finish_reason "abort" at the next step."""
        self._scheduler.abort(client_id, request_ids)

    def abort_client(self, client_id: str) -> None:
        """End all requests of a client that is gone."""
        self._scheduler.abort_client(client_id)

    def control(self, name: str, args: dict[str, Any]) -> Any:
        """Run a control operation between two steps. Raises InferplaneError for an unknown name or bad arguments."""
        operation = self._controls.get(name)
        if operation is None:
            known = ", ".join(sorted(self._controls))
            raise InferplaneError(
                f"there is no control operation {name!r}", code="control.unknown", remedy=f"use one of: {known}"
            )
        if args:
            given = ", ".join(sorted(args))
            raise InferplaneError(
                f"control operation {name!r} takes no arguments, got {given}",
                code="control.arguments",
                remedy="leave them out",
            )
        return operation()

    def has_work(self) -> bool:
        """True when `step` would do something."""
        scheduler = self._scheduler
        runnable = scheduler.num_requests > 0 and not self._paused
        return runnable or bool(self._launched) or scheduler.has_notices or scheduler.has_late

    def step(self) -> list[tuple[str, Delta]]:
        """Launch the next step and, with the queue full or nothing to launch, collect the oldest.

        Returns (client id, delta) pairs. Raises the runner's exception after MAX_FAILED_STEPS failures in a row; until
        then a failure ends only the requests of the steps that it touches.
        """
        launched = False
        self._scheduler.expire()
        if not self._paused:
            plan = self._scheduler.schedule()
            launched = not plan.empty
            if launched:
                self._launch(plan)
        outputs: list[tuple[str, Delta]] = []
        if self._launched and (not launched or len(self._launched) >= self._queue_depth):
            outputs = self._collect()
        return self._scheduler.take_notices() + outputs

    def take_started(self) -> list[tuple[str, str]]:
        """(client id, request id) of the requests that left the queue since the last call."""
        return self._scheduler.take_started()

    def stats(self) -> Stats:
        """Counters since start and gauges of now."""
        stats = self._scheduler.stats()
        stats.step_tokens, stats.step_tokens_sum = self._step_tokens, self._step_tokens_sum
        oldest = self._scheduler.waiting.oldest_arrival()
        stats.oldest_waiting_seconds = 0.0 if oldest is None else self._clock() - oldest
        return stats

    def _launch(self, plan: StepPlan) -> None:
        at = self._clock()
        if self.oldest_launch is None:
            self.oldest_launch, self.expected_seconds = at, self.pace.expect(plan.num_tokens)
        try:
            handle = self._runner.launch(plan)
            self._runner.sample(handle, None)
        except Exception as error:
            self._fail(plan, error)
            self._note_oldest()
            return
        self._launched.append(_Launched(plan, handle, at))

    def _collect(self) -> list[tuple[str, Delta]]:
        oldest = self._launched.popleft()
        try:
            result = self._runner.collect(oldest.handle)
        except Exception as error:
            # The later steps build on this one; they must leave the device before their pages are used again.
            while self._launched:
                with suppress(Exception):
                    self._runner.collect(self._launched.popleft().handle)
            self._note_oldest()
            self._fail(oldest.plan, error)
            return []
        self._failed_steps = 0
        self._grow()
        self.steps_completed += 1
        num_tokens = oldest.plan.num_tokens
        self.pace.learn(self._clock() - oldest.at, num_tokens)
        self._step_tokens[bisect_left(STEP_TOKENS, num_tokens)] += 1
        self._step_tokens_sum += num_tokens
        self._note_oldest()
        return self._scheduler.update(oldest.plan, result)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        if is_out_of_memory(error) and plan.num_tokens > 1:
            self._shrink(plan, error)
            return
        self._failed_steps += 1
        failure = describe(error)
        _logger.error(
            "step %d failed (error id %s): %s; remedy: %s",
            plan.step_id, failure.error_id, failure.cause, failure.remedy, exc_info=error,
        )  # fmt: skip
        self._scheduler.fail_from(plan.step_id, failure.public, failure.code)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise error

    def _shrink(self, plan: StepPlan, error: Exception) -> None:
        """A step that needs more memory than there is is computed again in smaller ones: nobody has to fail for it."""
        if self._scheduler.max_tokens < self._scheduler.limits.max_tokens:
            self._good_steps_wanted *= 2
        self._good_steps = 0
        smaller = plan.num_tokens // 2
        _logger.warning(
            "step %d ran out of memory with %d tokens of %d requests (%s); they are computed again in steps of %d "
            "tokens; remedy: %s",
            plan.step_id, plan.num_tokens, len(plan.slots), error, smaller, describe(error).remedy,
        )  # fmt: skip
        self._scheduler.retry_from(plan.step_id, smaller)

    def _grow(self) -> None:
        present = self._scheduler.max_tokens
        if present == self._scheduler.limits.max_tokens:
            return
        self._good_steps += 1
        if self._good_steps >= self._good_steps_wanted:
            self._good_steps = 0
            self._scheduler.allow(2 * present)

    def _note_oldest(self) -> None:
        if self._launched:
            first = self._launched[0]
            self.oldest_launch, self.expected_seconds = first.at, self.pace.expect(first.plan.num_tokens)
        else:
            self.oldest_launch, self.expected_seconds = None, 0.0

    def _reset_prefix_cache(self) -> bool:
        self._scheduler.reset_prefix_cache()
        return True

    def _stats(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self.stats())

    def _pause(self) -> bool:
        self._paused = True
        return True

    def _resume(self) -> bool:
        self._paused = False
        return True
