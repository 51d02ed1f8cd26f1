"""Errors of the core that a user or a client sees; each says what to do. Knows no HTTP."""

from __future__ import annotations

from inferplane_api.errors import InferplaneError, InvalidValue, Unsupported

__all__ = ["ContextTooLong", "EngineDead", "InferplaneError", "InvalidValue", "QueueFull", "Unsupported"]


class ContextTooLong(InvalidValue):
    """A prompt, or prompt and max_tokens, that does not fit the context; names both numbers."""


class EngineDead(InferplaneError):
    """The engine process is gone or hangs; the message is its cause."""


class QueueFull(InferplaneError):
    """Too much is waiting; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message, code="queue.full", remedy=f"try again after {retry_after:.0f} s")
        self.retry_after = retry_after
