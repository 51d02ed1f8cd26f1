"""The simulated chip, in place of a vendor's driver and runtime: compiled shapes and an account of its memory."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from inferplane_api.errors import InferplaneError
from inferplane_examplechip.descriptor import BATCH_BUCKETS, TOKEN_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator


def require_compiled(num_tokens: int, num_rows: int | None = None) -> None:
    """Raise InferplaneError where no program was compiled for these sizes. Core pads a step to the declared ones."""
    sizes: list[tuple[str, int, tuple[int, ...]]] = [("tokens", num_tokens, TOKEN_BUCKETS)]
    if num_rows is not None:
        sizes.append(("requests", num_rows, BATCH_BUCKETS))
    for what, size, compiled in sizes:
        if size not in compiled:
            raise InferplaneError(
                f"examplechip has no program for {size} {what}, only for {', '.join(map(str, compiled))}",
                code="examplechip.shape",
                remedy="pad the call to the sizes that SchedulingConstraints declares",
            )


class Account:
    """Bytes of the chip in use. A real driver counts its own allocations; here a tensor that appears while a region is
    open counts until its storage dies."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.peak = 0
        self._held: list[tuple[StorageWeakRef, int]] = []

    def used(self) -> int:
        """Bytes held now."""
        self._held = [(storage, size) for storage, size in self._held if not _expired(storage)]
        return sum(size for _, size in self._held)

    @contextmanager
    def charge(self, tag: str) -> Iterator[None]:
        """Count what is allocated inside. Raises InferplaneError when the chip cannot hold it."""
        before = _storages()  # kept alive, so that no address is used twice
        yield
        new = [storage for address, storage in _storages().items() if address not in before]
        self._held += [(StorageWeakRef(storage), storage.nbytes()) for storage in new]  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, self.used())
        if self.used() > self.total:
            raise InferplaneError(
                f"examplechip has {self.total} bytes, and with {tag} {self.used()} are in use",
                code="examplechip.memory",
                remedy="a smaller model, --dtype float16, or a chip with more memory",
            )


def _storages() -> dict[int, torch.UntypedStorage]:
    """The memory of every living tensor, by address."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    return {storage.data_ptr(): storage for storage in storages if storage.nbytes() > 0}


def _expired(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]  # torch leaves it without types
