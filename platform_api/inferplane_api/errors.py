"""The exceptions that cross the contract; knows nothing about who raises or catches them."""

from __future__ import annotations


class InferplaneError(Exception):
    """An error with a message for a person and, where one is known, the remedy.

    `code` is stable and documented (for example `platform.none`); `remedy` says what to do.
    """

    def __init__(self, message: str, *, code: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


class InvalidValue(InferplaneError, ValueError):
    """A user's value that cannot be used: names the field, the value and the remedy."""

    def __init__(self, field: str, value: object, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{field}={value!r}: {problem}", code="value.invalid", remedy=remedy)
        self.field = field
        self.value = value
        self.problem = problem


class Unsupported(InferplaneError):
    """A thing that was asked for by name and cannot be done by the selected component."""
