"""Errors of the core that a user or a client sees; each says what to do. Knows no HTTP."""

from __future__ import annotations

import secrets

from inferplane_api.errors import InferplaneError, InvalidValue, Unsupported

__all__ = [
    "ContextTooLong",
    "EngineDead",
    "InferplaneError",
    "InvalidValue",
    "QueueFull",
    "ShuttingDown",
    "TookTooLong",
    "Unsupported",
]


class ContextTooLong(InvalidValue):
    """A prompt, or prompt and max_tokens, that does not fit the context; names both numbers."""


class EngineDead(InferplaneError):
    """The engine process is gone or hangs; the message is its cause, for the log and the server's owner."""

    def __init__(self, message: str, *, code: str = "", remedy: str = "", error_id: str = "") -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.error_id = error_id or secrets.token_hex(4)
        """The log has it beside the cause, and clients get nothing else."""

    @property
    def public(self) -> str:
        """For clients: no internals."""
        what = "does not answer" if self.code == "engine.hung" else "has stopped"
        return f"the engine {what}; error id {self.error_id}, the server's log has the cause"

    def again(self) -> EngineDead:
        """The same as a new exception, so that several can raise it."""
        return EngineDead(self.message, code=self.code, remedy=self.remedy, error_id=self.error_id)


class QueueFull(InferplaneError):
    """Too much is waiting; `retry_after` is in seconds, `reason` one of "requests", "tokens" and "text"."""

    def __init__(self, message: str, *, retry_after: float, reason: str = "requests") -> None:
        super().__init__(message, code="queue.full", remedy=f"try again after {retry_after:.0f} s")
        self.retry_after = retry_after
        self.reason = reason


class TookTooLong(InferplaneError):
    """A request is not done within the time that it may take."""


class ShuttingDown(InferplaneError):
    """The server ends and takes or finishes nothing more."""
