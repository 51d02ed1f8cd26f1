"""Memory for the tensors inside recorded steps: blocks that live as long as a tensor's storage, then serve the next."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

SEGMENT_BYTES = 8 * 2**20
_ALIGNMENT = 64


class Arena:
    """Steps that are recorded one after the other use the same blocks, since only one of them runs at a time."""

    def __init__(self) -> None:
        self._segments: list[np.ndarray] = []
        self._free: list[tuple[int, int, int]] = []
        """(segment, offset, bytes), sorted; neighbours are joined."""

    @property
    def num_bytes(self) -> int:
        """Held in all."""
        return sum(len(segment) for segment in self._segments)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with any contents. Its block is free again when its storage is, views included."""
        size = -(-max(1, math.prod(shape) * dtype.itemsize) // _ALIGNMENT) * _ALIGNMENT
        segment, offset = self._take(size)
        block = self._segments[segment][offset : offset + size]
        weakref.finalize(block, self._give, segment, offset, size)
        # The tensor's storage keeps `block`, and nothing else does.
        flat = torch.from_numpy(block)
        del block
        return flat[: math.prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))

    def _take(self, size: int) -> tuple[int, int]:
        for index, (segment, offset, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (segment, offset + size, room - size)
                return segment, offset
        total = max(size, SEGMENT_BYTES)
        memory = np.empty(total + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        self._segments.append(memory[start : start + total])
        segment = len(self._segments) - 1
        if total > size:
            self._insert(segment, size, total - size)
        return segment, 0

    def _give(self, segment: int, offset: int, size: int) -> None:
        self._insert(segment, offset, size)

    def _insert(self, segment: int, offset: int, size: int) -> None:
        self._free.append((segment, offset, size))
        self._free.sort()
        joined: list[tuple[int, int, int]] = []
        for block in self._free:
            if joined and joined[-1][0] == block[0] and joined[-1][1] + joined[-1][2] == block[1]:
                joined[-1] = (block[0], joined[-1][1], joined[-1][2] + block[2])
            else:
                joined.append(block)
        self._free = joined
