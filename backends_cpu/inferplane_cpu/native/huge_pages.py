"""Memory for weights in large pages where the system has them; knows nothing of what is stored.

A core that streams weights spends about as long on translating addresses of 4 KiB pages as on the data itself: on a
virtual machine (two levels of tables) one core read 15 GB/s from small pages and 27 GB/s from pages of 2 MiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from functools import lru_cache

import torch

PAGE = 2 * 2**20
SEGMENT_BYTES = 64 * 2**20
_ALIGNMENT = 64


class HugeMemory:
    """Gives out pieces of large mappings; a mapping goes when the last tensor in it does."""

    def __init__(self) -> None:
        self._segment: torch.Tensor | None = None
        self._used = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """uint8 [num_bytes], zeroed, aligned to a cache line. What is never touched takes no memory."""
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._segment is None or self._used + size > len(self._segment):
            self._segment, self._used = _map(max(size, SEGMENT_BYTES)), 0
        piece = self._segment[self._used : self._used + num_bytes]
        self._used += size
        return piece


def _map(num_bytes: int) -> torch.Tensor:
    size = -(-num_bytes // PAGE) * PAGE
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size, dtype=torch.uint8)
    # Private: shared memory, the module's default, has a setting of its own for large pages.
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A kernel without transparent huge pages refuses the advice: the memory is as good, only slower.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % PAGE
    return whole[start : start + size]


def advise(tensor: torch.Tensor) -> None:
    """Ask for large pages under a tensor's whole storage, which somebody else allocated; once for each storage.

    What has not been touched yet gets them at its first touch.
    """
    storage = tensor.untyped_storage()
    _advise(storage.data_ptr(), storage.nbytes())


@lru_cache(maxsize=64)
def _advise(address: int, num_bytes: int) -> None:
    first, last = -(-address // PAGE) * PAGE, (address + num_bytes) // PAGE * PAGE
    if last > first and hasattr(mmap, "MADV_HUGEPAGE"):
        # Advice only: where the kernel refuses it, nothing changes.
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(mmap.MADV_HUGEPAGE)
        )
