"""Takes the pages of a mapped file out of this process's memory; knows Linux's /proc, and does nothing elsewhere."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_MAPS = Path("/proc/self/maps")


def drop_pages(file: Path) -> None:
    """Drop the pages of every mapping of `file`.

    They stay in the system's file cache and are read from there when they are touched again. Whoever mapped the file
    privately must not have written to it: what was written is lost. The mappings are looked up instead of trusting a
    tensor's address, since the same advice would clear memory that is no file's.
    """
    if not hasattr(mmap, "MADV_DONTNEED") or not _MAPS.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    name = str(file.resolve())
    for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # address, permissions, offset, device, inode, path: proc_pid_maps(5)
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5] == name:
            first, last = (int(address, 16) for address in parts[0].split("-"))
            madvise(first, last - first, mmap.MADV_DONTNEED)  # advice: where it is refused, nothing changes
