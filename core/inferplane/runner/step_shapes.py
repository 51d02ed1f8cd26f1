"""The sizes that a step's tensors may have: any, or those of the buckets that a static-shape device declares."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from inferplane.errors import InferplaneError
from inferplane_api.spec import SchedulingConstraints

if TYPE_CHECKING:
    import numpy.typing as npt

    from inferplane_api.runner import RunnerLimits


class StepShapes:
    """Rounds numbers of tokens and rows up to a bucket; without buckets a number stays as it is."""

    def __init__(self, constraints: SchedulingConstraints, graph_rows: tuple[int, ...] = ()) -> None:
        """`graph_rows`: sizes of captured steps, see `SchedulingConstraints.graph_rows`."""
        self._tokens = constraints.token_buckets
        self._rows = constraints.batch_buckets
        self._graph_rows = graph_rows
        self.static = bool(self._tokens or self._rows)
        """True: whatever else could vary from step to step, such as the width of page tables, has one size."""
        self.max_rows = max(self._rows, default=None)

    def graph(self, num_tokens: int, num_rows: int) -> int | None:
        """Rows of the captured step that a step of so many tokens and rows runs as; None: it runs eagerly."""
        if num_tokens != num_rows or not self._graph_rows or num_rows > self._graph_rows[-1]:
            return None
        return _bucket(num_rows, self._graph_rows, "rows")

    def tokens(self, count: int) -> int:
        """Tokens of a step's tensors. Raises InferplaneError beyond the largest bucket."""
        return _bucket(count, self._tokens, "tokens")

    def rows(self, count: int) -> int:
        """Rows of a step's tensors, and of the logits. Raises InferplaneError beyond the largest bucket."""
        return _bucket(count, self._rows, "requests")

    def padded(self, limits: RunnerLimits) -> RunnerLimits:
        """The sizes of the largest step, padding included."""
        return msgspec.structs.replace(
            limits,
            max_num_batched_tokens=max(self.tokens(limits.max_num_batched_tokens), *self._graph_rows[-1:], 0),
            max_num_seqs=max(self.rows(limits.max_num_seqs), *self._graph_rows[-1:], 0),
        )


ANY_SHAPE = StepShapes(SchedulingConstraints())
"""Nothing is padded."""


def pad(array: npt.NDArray[Any], size: int, value: int = 0) -> npt.NDArray[Any]:
    """The array with `value` appended along the first dimension up to `size`; itself when that is its size."""
    if len(array) == size:
        return array
    longer = np.full((size, *array.shape[1:]), value, array.dtype)
    longer[: len(array)] = array
    return longer


def _bucket(count: int, buckets: tuple[int, ...], what: str) -> int:
    if not buckets:
        return count
    index = bisect_left(buckets, count)
    if index == len(buckets):
        raise InferplaneError(
            f"{count} {what} exceed the largest bucket of the device, {buckets[-1]}", code="runner.bucket"
        )
    return buckets[index]
