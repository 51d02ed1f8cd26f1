"""What a failed step says to whom: the cause and a remedy to the log, an id and no internals to clients."""

from __future__ import annotations

import secrets
from typing import NamedTuple

_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "resource_exhausted")
MEMORY_REMEDY = "lower --max-num-batched-tokens, --max-num-seqs or --memory-utilization"
REPORT_REMEDY = "the traceback is above; please report it with the output of `inferplane doctor`"


def is_out_of_memory(error: BaseException) -> bool:
    """True for the exceptions by which Python and tensor libraries say that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(known in text for known in _MEMORY_TEXTS)


class StepFailure(NamedTuple):
    """One failure under an id that log and clients share."""

    error_id: str
    cause: str
    remedy: str
    code: str
    public: str
    """For clients."""


def describe(error: Exception) -> StepFailure:
    """The two sides of an exception that a step raised."""
    error_id = secrets.token_hex(4)
    memory = is_out_of_memory(error)
    remedy = MEMORY_REMEDY if memory else getattr(error, "remedy", "") or REPORT_REMEDY
    what = "ran out of memory for this request" if memory else "failed while computing this request"
    return StepFailure(
        error_id=error_id,
        cause=f"{type(error).__name__}: {error}",
        remedy=remedy,
        code="out_of_memory" if memory else "step_failed",
        public=f"the engine {what}; error id {error_id}, the server's log has the cause",
    )
