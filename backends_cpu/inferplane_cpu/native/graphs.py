"""Records a step as a list of kernel calls on fixed memory and replays it without Python between the calls.

A function is run once under a dispatch mode. Kernels report their calls to the executor's recorder; what torch itself
computes in between (the angles of rotary embeddings, say) is noted as a call into torch whose result is copied to where
the first one lay, so that any model can be recorded, and one that uses only our kernels is one native call.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inferplane_api.errors import Unsupported
from inferplane_cpu.native.arena import Arena
from inferplane_cpu.native.structs import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_cpu.native.executor import Executor

_aten = torch.ops.aten
_READS_THE_DEVICE = frozenset(
    packet.default
    for packet in (
        _aten.item,
        _aten._local_scalar_dense,
        _aten.is_nonzero,
        _aten.equal,
        _aten.nonzero,
        _aten.unique_dim,
    )
)
"""Their results decide in Python what runs next, which a recording would freeze."""


class _TorchCall(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[torch.Tensor, ...]
    """Where the results belong; empty for a call that writes to its arguments."""

    def __call__(self) -> None:
        value = self.function(*self.args, **self.kwargs)
        for result, new in zip(self.results, tree_leaves(value), strict=False):
            result.copy_(new)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Implements `executor.Recorder` and notes torch's own calls in the same order."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena
        self.calls: list[Op | _TorchCall] = []
        self.kept: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch guards a mode against its compiler, which it imports for that: 0.8 s of processor time in every start.
        return False

    def add(self, op: Op, keep: tuple[Any, ...]) -> None:
        """A kernel has run."""
        self.calls.append(op)
        self.kept.append(keep)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _READS_THE_DEVICE:
            raise Unsupported(f"a step that reads {func} on the host cannot be recorded")
        if func is _aten.empty.memory_format:
            return self._arena.empty(args[0], kwargs.get("dtype") or torch.get_default_dtype())
        value = func(*args, **kwargs)
        if any(returned.alias_info and returned.alias_info.is_write for returned in func._schema.returns):
            self.calls.append(_TorchCall(func, args, kwargs, ()))
            return value
        results = _tensors(value)
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        # A schema says "may be a view" of reshape and contiguous: whether it is one shows in the memory.
        if results and all(result.untyped_storage().data_ptr() in inputs for result in results):
            return value
        self.calls.append(_TorchCall(func, args, kwargs, results))
        return value


def _tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


class NativeGraph:
    """A recorded step."""

    def __init__(self, executor: Executor, recording: _Recording, result: Any) -> None:
        self._executor = executor
        self._kept = recording.kept
        self.result = result
        self._parts: list[ctypes.Array[Op] | _TorchCall] = []
        run: list[Op] = []
        for call in [*recording.calls, None]:
            if isinstance(call, Op):
                run.append(call)
                continue
            if run:
                self._parts.append((Op * len(run))(*run))
                run = []
            if call is not None:
                self._parts.append(call)

    @property
    def num_breaks(self) -> int:
        """Calls into torch between the kernels."""
        return sum(isinstance(part, _TorchCall) for part in self._parts)

    def __call__(self) -> Any:
        """Run it again; what the function returned holds the new values."""
        for part in self._parts:
            if isinstance(part, _TorchCall):
                part()
            else:
                self._executor.run_list(part)
        return self.result


class NativeGraphs:
    """Implements `inferplane_api.platform.GraphCapture`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._arena = Arena()

    def capture(self, key: tuple[int, ...], function: Callable[[], Any]) -> Callable[[], Any]:
        """Run and record `function`; see `inferplane_api.platform.GraphCapture`.

        Raises Unsupported for a function that looks at a tensor's value on the host.
        """
        recording = _Recording(self._arena)
        self._executor.recorder = recording
        try:
            with recording:
                result = function()
        finally:
            self._executor.recorder = None
        return NativeGraph(self._executor, recording, result)
