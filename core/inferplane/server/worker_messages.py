"""What an API process and its parent say to each other over the process's pipes; knows nothing of who does what."""

from __future__ import annotations

import msgspec

from inferplane.client.following_client import EngineNews
from inferplane.messages import Failed
from inferplane.plan.types import Plan


class WorkerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What an API process reads first."""

    index: int
    client_id: str
    plan: Plan
    config: bytes
    """What the user said, as JSON."""
    provenance: str
    timeline: list[tuple[str, float]]
    """(phase, seconds) of the parent's part of the start."""
    listener: int
    cells: int
    """File descriptors, inherited."""
    num_rows: int
    news: EngineNews


class Serve(msgspec.Struct, frozen=True, kw_only=True, tag="serve"):
    """Begin to accept connections."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Accept no more and end; the second one means at once."""


ToWorker = EngineNews | Serve | Drain


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """It has all that it needs, and waits for Serve."""


FromWorker = Loaded | Failed
