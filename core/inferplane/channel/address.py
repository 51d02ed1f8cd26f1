"""Where an engine listens: sockets in a folder that only this user can enter."""

from __future__ import annotations

import shutil
import tempfile
from typing import NamedTuple


class EngineAddress(NamedTuple):
    """The two sockets of one engine."""

    folder: str
    data: str
    """Requests and control in, deltas and replies out."""
    alive: str
    """Liveness and phases, published by a thread of its own."""


def create_address(engine_id: int = 0) -> EngineAddress:
    """Make the folder (mode 0700). The name is short: a Unix socket's path holds about 100 bytes."""
    folder = tempfile.mkdtemp(prefix="inferplane-")
    return EngineAddress(folder, f"ipc://{folder}/data{engine_id}", f"ipc://{folder}/alive{engine_id}")


def remove_address(address: EngineAddress) -> None:
    """Remove the folder and what is in it; harmless when it is gone."""
    shutil.rmtree(address.folder, ignore_errors=True)
