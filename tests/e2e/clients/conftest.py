"""One scripted server with a key, for all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Scripted(NamedTuple):
    """Where it is, and what it says to everything."""

    url: str
    """With /v1."""
    key: str
    model: str
    answer: str

    @property
    def num_tokens(self) -> int:
        """A byte is a token, and the end-of-text token counts."""
        return len(self.answer.encode()) + 1


@pytest.fixture(scope="package")
def scripted(scripted_model: Path, served: Any) -> Iterator[Scripted]:
    answer, key = "Hello, clients: é 日本!", "clients-key"
    with served(scripted_model, {"default": list(answer.encode())}, "--api-key", key) as server:
        yield Scripted(f"{server.wait_ready()}/v1", key, "scripted", answer)
