"""Keeps the C library from returning and re-faulting memory at every large tensor; knows glibc only."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 256 * 2**20
"""Allocations below this come from the heap, and this much free heap is kept."""


def keep_freed_memory() -> bool:
    """Let glibc reuse freed blocks of activations' size instead of unmapping them.

    Without it every temporary above 128 KiB is mapped, zeroed page by page and unmapped again: a normalisation of 512
    tokens takes ten times as long. True when the C library took the setting; others are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
