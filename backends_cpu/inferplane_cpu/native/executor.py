"""Runs operations on the process's pool of threads, or records them; knows their arguments only as structures."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

import torch

from inferplane_api.errors import Unsupported
from inferplane_cpu.native.huge_pages import HugeMemory
from inferplane_cpu.native.library import open_library, select_instruction_set
from inferplane_cpu.native.structs import Kind, Op, Pack

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What the kernels compute in, and the C interface's number for it."""


class Recorder(Protocol):
    """Takes note of operations as they run."""

    def add(self, op: Op, keep: tuple[Any, ...]) -> None:
        """An operation that has just run; `keep` is what it points into."""


class Executor:
    """The pool of threads and the instruction set of this process. Used from one thread."""

    def __init__(self, num_threads: int, processors: Sequence[int] = (), isa: str | None = None) -> None:
        """`processors`: those that the threads are bound to, none: the system places them.

        Raises Unsupported without native kernels, InvalidValue for an instruction set that the processor lacks.
        """
        self._library = open_library()
        self.isa = select_instruction_set(isa)
        self.num_threads = num_threads
        self.recorder: Recorder | None = None
        self.weights = HugeMemory()
        numbers = (ctypes.c_int32 * len(processors))(*processors)
        self._pool = self._library.ip_pool_create(num_threads, numbers, len(processors))

    def run(self, kind: Kind, dtype: torch.dtype, arguments: ctypes.Structure, keep: tuple[Any, ...] = ()) -> None:
        """One operation, finished when this returns. Raises Unsupported for a dtype that no kernel computes in."""
        number = TYPES.get(dtype)
        if number is None:
            raise Unsupported(f"the native kernels do not compute in {dtype}", remedy="use float32 or bfloat16")
        op = Op(kind, number, ctypes.addressof(arguments))
        self._library.ip_run(self._pool, ctypes.byref(op), 1)
        if self.recorder is not None:
            self.recorder.add(op, (arguments, *keep))

    def run_list(self, ops: ctypes.Array[Op]) -> None:
        """Operations one after the other, without coming back in between."""
        self._library.ip_run(self._pool, ops, len(ops))

    def packed_bytes(self, dtype: torch.dtype, n: int, k: int) -> int:
        """Bytes of a packed matrix [n, k]."""
        size: int = self._library.ip_packed_bytes(TYPES[dtype], n, k)
        return size

    def pack(self, weight: torch.Tensor, first: int, n: int, packed: torch.Tensor) -> None:
        """Rows of `weight` [count, k] become rows [first, first + count) of a packed matrix of n rows."""
        count, k = weight.shape
        arguments = Pack(
            w=weight.data_ptr(), stride=weight.stride(0), packed=packed.data_ptr(), first=first, count=count, n=n, k=k
        )
        self.run(Kind.PACK, weight.dtype, arguments)

    def quant_packed_bytes(self, scheme: int, n: int, k: int) -> int:
        """Bytes of a packed matrix [n, k] of a quantization scheme."""
        size: int = self._library.ip_quant_packed_bytes(scheme, n, k)
        return size

    def close(self) -> None:
        """End the threads."""
        if self._pool:
            self._library.ip_pool_destroy(self._pool)
            self._pool = None


class _Process:
    """As torch has one pool of threads for a process, so have the kernels."""

    executor: Executor | None = None
    num_threads: int = 1
    processors: Sequence[int] = ()
    isa: str | None = None


def configure(num_threads: int, processors: Sequence[int] = (), isa: str | None = None) -> None:
    """What the executor of this process is made with, when something first needs it; ends an earlier one."""
    if _Process.executor is not None:
        _Process.executor.close()
    _Process.executor = None
    _Process.num_threads, _Process.processors, _Process.isa = num_threads, processors, isa


def executor() -> Executor:
    """The executor of this process. Making it leaves torch one thread: two pools would take turns on the same cores,
    each waiting for the other. Raises as Executor does."""
    if _Process.executor is None:
        _Process.executor = Executor(_Process.num_threads, _Process.processors, _Process.isa)
        torch.set_num_threads(1)
    return _Process.executor
