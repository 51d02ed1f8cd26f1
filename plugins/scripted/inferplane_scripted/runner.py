"""Plays a script behind the Runner protocol; knows slots and positions, computes nothing."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from inferplane_api.errors import InferplaneError
from inferplane_api.step import StepResult, TokenLogprobs
from inferplane_scripted.script import Output, Script, candidates_at, prompt_key, read_script, token_at

if TYPE_CHECKING:
    from inferplane_api.runner import RunnerContext
    from inferplane_api.step import NewRequest, SampleInputs, StepPlan

EXIT_STATUS = 70
"""Of a process that the fault "exit" ends."""


class _Request:
    """One occupied slot."""

    def __init__(self, new: NewRequest, script: Script) -> None:
        self.request_id = new.request_id
        self.prompt = tuple(new.token_ids[: new.num_prompt_tokens])
        self.params = new.params
        self.pooling = new.pooling
        self.eos = new.eos_token_ids
        self.output: Output | None = script.output(self.prompt)
        self.next_start: int | None = None
        """Where the next row must start; None before the first (cached tokens are skipped)."""


class _Row(NamedTuple):
    request: _Request
    start: int
    end: int
    sampled: bool

    @property
    def position(self) -> int:
        """Output position of the token that this row samples."""
        return self.end - len(self.request.prompt)


class _Handle(NamedTuple):
    step_id: int
    number: int
    """Of the steps that compute something, from 1; 0 for an empty step."""
    rows: list[_Row]


class ScriptedRunner:
    """A runner that answers from a script, and refuses plans that break the contract's order."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._vocab_size = context.model.vocab_size
        self._slots: dict[int, _Request] = {}
        self._steps = 0
        self._script = Script()

    def load(self) -> None:
        """Read the script. Raises InvalidValue, or InferplaneError where the script wants loading to fail."""
        self._script = read_script(str(self._context.options.get("script", "")))
        end = time.monotonic() + self._script.load_seconds
        while (left := end - time.monotonic()) > 0:
            self._context.progress("loading", 1.0 - left / self._script.load_seconds)
            time.sleep(min(left, 0.2))
        if self._script.load_error:
            raise InferplaneError(self._script.load_error, code="scripted.load", remedy="change the script")

    def allocate(self, max_pages: int | None) -> int:
        """The user's number of pages, or the option's; nothing is allocated."""
        return int(self._context.options.get("pages", 4096)) if max_pages is None else max_pages

    def warmup(self) -> None:
        """Nothing to warm."""

    def launch(self, plan: StepPlan) -> _Handle:
        """Apply the delta and remember the rows."""
        if plan.draft_tokens:
            raise InferplaneError("the scripted runner verifies no draft tokens", code="scripted.drafts")
        for slot in plan.removed:
            self._slots.pop(slot, None)
        for new in plan.added:
            if new.slot in self._slots:
                raise InferplaneError(f"slot {new.slot} is taken", code="scripted.plan")
            self._slots[new.slot] = _Request(new, self._script)
        sampled = set(plan.sample_rows)
        rows = [
            self._row(slot, start, count, index in sampled)
            for index, (slot, start, count) in enumerate(zip(plan.slots, plan.starts, plan.counts, strict=True))
        ]
        if rows:
            self._steps += 1
        return _Handle(plan.step_id, self._steps if rows else 0, rows)

    def _row(self, slot: int, start: int, count: int, sampled: bool) -> _Row:
        request = self._slots[slot]
        if count < 1 or start < 0 or request.next_start not in (None, start):
            raise InferplaneError(
                f"slot {slot}: a row at [{start}, {start + count}) does not follow {request.next_start}",
                code="scripted.plan",
            )
        if sampled and start + count < len(request.prompt):
            raise InferplaneError(f"slot {slot}: sampled before the end of the prompt", code="scripted.plan")
        request.next_start = start + count
        return _Row(request, start, start + count, sampled)

    def sample(self, handle: _Handle, inputs: SampleInputs | None) -> None:
        """The script has sampled already."""

    def collect(self, handle: _Handle) -> StepResult:
        """Take as long as the script says, let happen what it says, and answer."""
        if handle.rows:
            time.sleep(self._delay())
        sampled = [row for row in handle.rows if row.sampled]
        corrupted = self._happen(handle, sampled)
        tokens = [self._token(row) for row in sampled]
        wants = any(row.request.params.logprobs is not None for row in sampled)
        return StepResult(
            step_id=handle.step_id,
            tokens=[[token] for token in tokens],
            logprobs=[self._logprobs(row, token) for row, token in zip(sampled, tokens, strict=True)]
            if wants
            else None,
            prompt_logprobs=self._prompt_logprobs(handle.rows),
            pooled=self._pooled(handle.rows),
            corrupted=corrupted,
        )

    def close(self) -> None:
        """Forget the slots and unmap what was never read."""
        self._slots.clear()
        if self._context.checkpoint is not None:
            self._context.checkpoint.close()

    def _delay(self) -> float:
        if self._script.delay is not None:
            return self._script.delay
        return float(self._context.options.get("delay", 0.0))

    def _token(self, row: _Row) -> int:
        request = row.request
        return token_at(request.output, request.prompt, row.position, self._vocab_size, request.eos)

    def _happen(self, handle: _Handle, sampled: list[_Row]) -> list[int]:
        """Let the faults of this step happen; the indices of sampled rows that are corrupted."""
        corrupted: set[int] = set()
        for fault in self._script.faults:
            if fault.step is not None:
                hit = list(range(len(sampled)))
                due = fault.step == handle.number
            else:
                hit = [
                    index
                    for index, row in enumerate(sampled)
                    if prompt_key(row.request.prompt) == fault.prompt and row.position == fault.position
                ]
                due = bool(hit)
            if not due:
                continue
            if fault.kind == "raise":
                raise InferplaneError(f"scripted fault at step {handle.number}", code="scripted.fault", remedy="none")
            if fault.kind == "out_of_memory":
                raise MemoryError(f"scripted: {handle.step_id} is too large a step")
            if fault.kind == "hang":
                threading.Event().wait()
            if fault.kind == "exit":
                os._exit(EXIT_STATUS)
            corrupted.update(hit)
        return sorted(corrupted)

    def _logprobs(self, row: _Row, token: int) -> list[TokenLogprobs] | None:
        limit = row.request.params.logprobs
        if limit is None:
            return None
        return [self._entry(row.request.output, token, row.position, limit)]

    def _prompt_logprobs(self, rows: list[_Row]) -> dict[int, list[TokenLogprobs]] | None:
        """Every prompt token is the most likely one at its place."""
        found: dict[int, list[TokenLogprobs]] = {}
        for index, row in enumerate(rows):
            limit = row.request.params.prompt_logprobs
            prompt = row.request.prompt
            following = prompt[row.start + 1 : row.end + 1]
            if limit is not None and following:
                found[index] = [self._entry(None, token, 0, limit) for token in following]
        return found or None

    def _pooled(self, rows: list[_Row]) -> dict[int, list[float]] | None:
        """Of a pooled prompt: its tokens over the size of the vocabulary, repeated to the model's hidden size."""
        found: dict[int, list[float]] = {}
        for index, row in enumerate(rows):
            pooling, prompt = row.request.pooling, row.request.prompt
            if pooling is not None and row.end >= len(prompt):
                size = pooling.dimensions or self._context.model.hidden_size
                found[index] = [prompt[i % len(prompt)] / self._vocab_size for i in range(size)]
        return found or None

    def _entry(self, output: Output | None, token: int, position: int, limit: int) -> TokenLogprobs:
        everything = candidates_at(output, token, position, self._vocab_size)
        place = next((rank for rank, (candidate, _) in enumerate(everything, start=1) if candidate == token), None)
        top = everything if limit < 0 else everything[:limit]
        return TokenLogprobs(
            token_id=token,
            logprob=float("-inf") if place is None else everything[place - 1][1],
            rank=self._vocab_size if place is None else place,
            top_ids=[candidate for candidate, _ in top],
            top_logprobs=[value for _, value in top],
        )
