"""A disk that runs full in the middle of a download: the cause, a remedy, and what arrived is kept."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from inferplane.errors import InferplaneError
from inferplane.sources.download import Expected, download

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "source.disk_full"), (errno.EDQUOT, "source.disk_full"), (errno.EIO, "source.not_writable")],
)
def test_what_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path, number: int, code: str) -> None:
    blocks = 3

    def progress(name: str, done: int, total: int | None) -> None:
        nonlocal blocks
        blocks -= 1
        if blocks == 0:
            raise OSError(number, os.strerror(number))

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield from [b"0123456789"] * 5

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Body()))
    target = tmp_path / "file"
    with httpx.Client(transport=transport) as client, pytest.raises(InferplaneError) as caught:
        download(client, "http://host/file", target, Expected(), progress)
    assert caught.value.code == code
    assert str(tmp_path) in caught.value.message
    assert "INFERPLANE_CACHE" in caught.value.remedy
    assert not target.exists()
    assert (tmp_path / "file.part").read_bytes() == b"0123456789" * 3
