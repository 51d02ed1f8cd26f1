"""A step while it is being planned, and what is remembered of it until it is collected. Decides nothing."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from inferplane.engine.tables import PageColumns
from inferplane_api.step import NewRequest, StepPlan

if TYPE_CHECKING:
    from inferplane.engine.request import RequestState


class Rows(Enum):
    """Which rows a step takes."""

    ANY = "any"
    SINGLE = "single"
    """Only rows of one token."""
    CHUNK = "chunk"
    """Only rows of more than one token."""


class Draft:
    """Collects rows; decode rows are appended straight to `slots`, `starts` and `rows` by the scheduler."""

    __slots__ = ("added", "budget", "chunks", "columns", "kind", "rows", "singles", "slots", "starts", "step_id")

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.budget = 0
        """Tokens that may still be added; the planner sets it."""
        self.kind = Rows.ANY
        self.columns = PageColumns()
        self.added: list[NewRequest] = []
        self.slots: list[int] = []
        self.starts: list[int] = []
        self.rows: list[RequestState] = []
        self.singles: list[tuple[RequestState, int, int, bool]] = []
        """Prompt rows of one token: (request, start, count, sampled)."""
        self.chunks: list[tuple[RequestState, int, int, bool]] = []

    @property
    def empty(self) -> bool:
        """True when there is no row."""
        return not (self.slots or self.singles or self.chunks)

    def takes(self, count: int) -> bool:
        """True when a prompt row of this length may stand in the step."""
        return count > 0 and (self.kind is Rows.ANY or (count == 1) == (self.kind is Rows.SINGLE))

    def add_prompt(self, request: RequestState, start: int, count: int, sampled: bool) -> None:
        """Append a prompt row."""
        (self.singles if count == 1 else self.chunks).append((request, start, count, sampled))
        self.budget -= count


class Flight:
    """A planned step that has not been collected."""

    __slots__ = ("plan", "rows", "sampled", "watched")

    def __init__(
        self,
        plan: StepPlan,
        rows: list[RequestState],
        sampled: list[RequestState],
        watched: list[tuple[int, RequestState]],
    ) -> None:
        self.plan = plan
        self.rows = rows
        self.sampled = sampled
        """The request of each entry of `plan.sample_rows`."""
        self.watched = watched
        """(row, request) of prompt rows whose result matters although nothing may be sampled from them."""


def complete(draft: Draft, removed: list[int]) -> Flight:
    """Put the rows into batch order (single tokens first) and make the StepPlan."""
    slots, starts, rows = draft.slots, draft.starts, draft.rows
    counts = [1] * len(slots)
    sample_rows = list(range(len(slots)))
    sampled = rows
    watched: list[tuple[int, RequestState]] = []
    if draft.singles or draft.chunks:
        sampled = list(rows)
        for request, start, count, samples in draft.singles + draft.chunks:
            row = len(slots)
            slots.append(request.slot)
            starts.append(start)
            counts.append(count)
            rows.append(request)
            if samples:
                sample_rows.append(row)
                sampled.append(request)
            if request.prompt_logprobs is not None or not request.samples:
                watched.append((row, request))
    columns = draft.columns
    plan = StepPlan(
        step_id=draft.step_id,
        removed=removed,
        added=draft.added,
        page_slots=columns.slots,
        page_groups=columns.groups,
        page_indices=columns.indices,
        page_ids=columns.ids,
        slots=slots,
        starts=starts,
        counts=counts,
        sample_rows=sample_rows,
    )
    return Flight(plan, rows, sampled, watched)
