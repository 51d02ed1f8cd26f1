"""Numbers that several processes write, each in a row of its own, and that any of them may sum. Knows no meaning.

A row has one writer at a time, so nothing is locked; what a process has counted stays when it dies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_CELLS = 2**16
"""Memory is used for the cells that are written only."""
NUM_RUNNING, NUM_OPEN, NUM_WAITING, TOKENS_WAITING = range(4)
"""The first cells of a row tell of now, and are void once its writer is gone."""
_NUM_PRESENT = 8
_BYTES = 8


class Cells:
    """The row of this process beside those of the others; all of them are laid out alike."""

    def __init__(self, rows: Sequence[memoryview[float]], own: int = 0) -> None:
        """rows: of float64, as long as ROW_CELLS."""
        self.rows = rows
        self.index = own
        self.own = rows[own]
        self._next = _NUM_PRESENT

    @classmethod
    def private(cls) -> Cells:
        """One row that no other process sees."""
        return cls([memoryview(mmap.mmap(-1, ROW_CELLS * _BYTES)).cast("d")])

    def take(self, count: int) -> int:
        """The first of `count` new cells. Every process takes the same ones in the same order."""
        first = self._next
        self._next += count
        assert self._next <= ROW_CELLS, "a row is too short for what is counted"
        return first

    def total(self, cell: int) -> float:
        """The sum over all rows."""
        return sum(row[cell] for row in self.rows)

    def others(self, cell: int) -> float:
        """The sum over the rows of other processes."""
        return self.total(cell) - self.own[cell]


class SharedRows:
    """Rows in memory that child processes inherit as a file descriptor."""

    def __init__(self, descriptor: int, num_rows: int) -> None:
        self.descriptor = descriptor
        self._map = memoryview(mmap.mmap(descriptor, num_rows * ROW_CELLS * _BYTES)).cast("d")
        self.rows = [self._map[index * ROW_CELLS : (index + 1) * ROW_CELLS] for index in range(num_rows)]

    @classmethod
    def create(cls, num_rows: int) -> SharedRows:
        """All zero; no file of it is ever seen."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("inferplane")
        else:
            descriptor, path = tempfile.mkstemp(prefix="inferplane-")
            os.unlink(path)
        os.ftruncate(descriptor, num_rows * ROW_CELLS * _BYTES)
        return cls(descriptor, num_rows)

    def forget(self, index: int) -> None:
        """The writer of a row is gone: what it told of now holds no more, what it has counted does."""
        for cell in range(_NUM_PRESENT):
            self.rows[index][cell] = 0.0

    def close(self) -> None:
        """Close the descriptor; the memory goes with the process."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
