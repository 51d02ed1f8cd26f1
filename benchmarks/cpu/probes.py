"""What the machine gives at this moment: bytes a second that its cores can read, bf16 operations a second of a GEMM.

The buffers live as long as `Probes`, so that a measurement between two engines takes about a second.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROBE_BYTES = 768 << 20
"""Above the last-level cache of any processor that this is for."""
GEMM_SIZE = 2048

# Four independent sums, so that the additions' latency does not hide the memory's speed.
_READER = """
#include <cstddef>
#include <cstdint>
extern "C" uint64_t read_all(const uint64_t* data, size_t count) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i + 32 <= count; i += 32)
        for (size_t j = 0; j < 8; ++j) {
            a += data[i + j]; b += data[i + 8 + j]; c += data[i + 16 + j]; d += data[i + 24 + j];
        }
    return a + b + c + d;
}
"""


class Probes:
    """threads: as many as the engines use."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch, self._threads = torch, threads
        self._memory = torch.ones(PROBE_BYTES // 4, dtype=torch.float32)  # written, so that its pages exist
        self._left = torch.randn(GEMM_SIZE, GEMM_SIZE).bfloat16()
        self._right = torch.randn(GEMM_SIZE, GEMM_SIZE).bfloat16()
        self._reader = _compile_reader()
        self._pool = ThreadPoolExecutor(threads)

    def measure(self) -> dict[str, float]:
        """{"read_gb_s": ..., "bf16_tflop_s": ...}."""
        halves = self._memory.view(2, -1)
        # Several ways to read, since none is at the limit everywhere.
        ways: list[Callable[[], Any]] = [self._memory.sum, lambda: self._torch.dot(halves[0], halves[1])]
        if self._reader is not None:
            ways.append(self._read_natively)
        with self._torch.inference_mode():
            seconds = min(best_of(4, way) for way in ways)
            matmul = best_of(8, lambda: self._left @ self._right)
        return {"read_gb_s": PROBE_BYTES / seconds / 1e9, "bf16_tflop_s": 2 * GEMM_SIZE**3 / matmul / 1e12}

    def _read_natively(self) -> None:
        assert self._reader is not None
        words = PROBE_BYTES // 8 // self._threads
        start = self._memory.data_ptr()
        starts = [start + index * words * 8 for index in range(self._threads)]
        # A foreign call holds no lock: the threads do read at once.
        list(self._pool.map(self._reader, starts, [words] * self._threads))


def best_of(repeats: int, run: Callable[[], Any]) -> float:
    """Seconds of the fastest: a ceiling is what the machine can do, not what it did on average."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


def _compile_reader() -> Callable[[int, int], int] | None:
    """None without g++: torch's reductions then stand alone."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="inferplane-probe-") as folder:
        source, library = Path(folder) / "reader.cpp", Path(folder) / "reader.so"
        source.write_text(_READER)
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(library)).read_all
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    reader: Callable[[int, int], int] = function
    return reader
