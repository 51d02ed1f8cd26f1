"""Where an engine listens: sockets in a folder that only this user can enter."""

from __future__ import annotations

import os
import secrets
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


def choose_address(engine_id: int = 0) -> EngineAddress:
    """A name for a folder that is not there yet: the engine makes it, so that a front end that dies before it has
    started one leaves nothing behind. Short: a Unix socket's path holds about 100 bytes."""
    folder = f"{tempfile.gettempdir()}/inferplane-{secrets.token_hex(6)}"
    return EngineAddress(folder, f"ipc://{folder}/data{engine_id}", f"ipc://{folder}/alive{engine_id}")


def make_folder(address: EngineAddress) -> None:
    """Make the folder, for this user only. Raises FileExistsError for one that is there: it may be somebody else's."""
    os.mkdir(address.folder, mode=0o700)


def remove_address(address: EngineAddress) -> None:
    """Remove the folder and what is in it; harmless when it is gone."""
    shutil.rmtree(address.folder, ignore_errors=True)
