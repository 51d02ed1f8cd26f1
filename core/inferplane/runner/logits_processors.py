"""Calls the logits processors for the slots that asked for them; a failure is its slots' own. Knows no sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from inferplane.log import get_logger
from inferplane.plan.load import construct
from inferplane.runner.batch_state import upload
from inferplane_api.logits_processors import SlotRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferplane.plan.types import Component, PlannedProcessor
    from inferplane.runner.slot_sampling import Ints
    from inferplane_api.logits_processors import LogitsProcessor, ProcessorContext
    from inferplane_api.step import NewRequest

_logger = get_logger("runner")


class _Processor(NamedTuple):
    name: str
    processor: LogitsProcessor
    parameters: frozenset[str] | None
    """None: whatever the request carries."""
    slots: set[int]


class Failure(NamedTuple):
    """Why a slot's request cannot go on."""

    text: str
    refused: bool
    """The processor does not take what the client asked for; else it failed."""


class LogitsProcessors:
    """All processors of an engine, in the order of the Plan."""

    def __init__(
        self, planned: Sequence[PlannedProcessor], context: ProcessorContext, load: Callable[[Component], Any]
    ) -> None:
        """Raises InferplaneError naming the processor that cannot be made."""
        self._device = context.device
        self._failures: dict[int, Failure] = {}
        """Slot to what went wrong since it was last sampled."""
        self._processors = [
            _Processor(
                each.name,
                construct(load, each.component, context),
                None if each.parameters is None else frozenset(parameter.name for parameter in each.parameters),
                set(),
            )
            for each in planned
        ]

    def add(self, request: NewRequest) -> bool:
        """Offer a request to every processor; True where one takes it, or fails for it."""
        arguments: Mapping[str, Any] = request.params.extra_args or {}
        taken = False
        for each in self._processors if arguments else ():
            given = arguments
            if each.parameters is not None:
                given = {name: value for name, value in arguments.items() if name in each.parameters}
            if not given:
                continue
            entering = SlotRequest(
                slot=request.slot,
                arguments=given,
                prompt_token_ids=request.token_ids[: request.num_prompt_tokens],
                output_token_ids=request.token_ids[request.num_prompt_tokens :],
            )
            try:
                if each.processor.add(entering):
                    each.slots.add(request.slot)
                    taken = True
            except ValueError as error:
                _logger.info("logits processor %s refused a request: %s", each.name, error)
                refusal = Failure(f"logits processor {each.name} does not take it: {error}", refused=True)
                self._failures.setdefault(request.slot, refusal)
                taken = True
            except Exception as error:  # it is a plugin's code that runs here
                self._fail(each, [request.slot], error)
                taken = True
        return taken

    def remove(self, slot: int) -> None:
        """The slot's request left."""
        self._failures.pop(slot, None)
        for each in self._processors:
            if slot in each.slots:
                each.slots.discard(slot)
                try:
                    each.processor.remove(slot)
                except Exception:
                    # Its request is over: there is nobody to fail.
                    _logger.exception("logits processor %s failed to remove a request", each.name)

    def apply(self, logits: torch.Tensor, slots: Ints) -> None:
        """In place on logits [N, V]; rows of a processor that fails stay as they were."""
        for each in self._processors:
            rows, owners = self._rows(each, slots)
            if not owners:
                continue
            where = upload(rows, self._device)
            chosen = logits.index_select(0, where)
            try:
                changed = each.processor.apply(chosen, owners)
                if changed.shape != chosen.shape or changed.dtype != chosen.dtype:
                    raise TypeError(f"apply returned {tuple(changed.shape)} {changed.dtype}")
                logits.index_copy_(0, where, changed)
            except Exception as error:
                self._fail(each, owners, error)

    def finish(self, slots: Ints, tokens: torch.Tensor) -> dict[int, Failure]:
        """Tell of the tokens [N]; returns row to failure for the rows that failed since they were last sampled."""
        for each in self._processors:
            rows, owners = self._rows(each, slots)
            if owners:
                try:
                    each.processor.sampled(owners, tokens[upload(rows, self._device)])
                except Exception as error:
                    self._fail(each, owners, error)
        if not self._failures:
            return {}
        failed = {row: self._failures.pop(slot) for row, slot in enumerate(slots.tolist()) if slot in self._failures}
        return failed

    def _rows(self, each: _Processor, slots: Ints) -> tuple[Ints, list[int]]:
        """Rows and slots of the processor's healthy requests."""
        if not each.slots:
            return np.empty(0, np.int64), []
        found = [
            (row, slot) for row, slot in enumerate(slots.tolist()) if slot in each.slots and slot not in self._failures
        ]
        return np.array([row for row, _ in found], np.int64), [slot for _, slot in found]

    def _fail(self, each: _Processor, slots: Sequence[int], error: Exception) -> None:
        _logger.error("logits processor %s failed", each.name, exc_info=error)
        text = f"logits processor {each.name} failed: {type(error).__name__}: {error}"
        for slot in slots:
            self._failures.setdefault(slot, Failure(text, refused=False))
