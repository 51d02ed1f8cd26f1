"""Captured steps: one replay for each number of rows, over input buffers that keep their addresses. Knows no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferplane.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.platform import GraphCapture

logger = get_logger("runner.graphs")


class StepGraphs:
    """The captured steps of a model. What a replay returns holds until the next one."""

    def __init__(self, graphs: GraphCapture, max_rows: int, device: torch.device) -> None:
        self._graphs = graphs
        self._input_ids = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._replays: dict[int, Callable[[], torch.Tensor]] = {}

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows captured so far."""
        return sorted(self._replays)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """`model(input_ids, positions)`, [T] int64 each, giving [T, hidden]; captured the first time for a T."""
        rows = len(input_ids)
        ids, at = self._input_ids[:rows], self._positions[:rows]
        ids.copy_(input_ids)
        at.copy_(positions)
        replay = self._replays.get(rows)
        if replay is None:
            logger.debug("capturing a step of %d rows", rows)
            replay = self._graphs.capture((rows,), lambda: model(ids, at))
            self._replays[rows] = replay
        return replay()
