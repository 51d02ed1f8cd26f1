"""Where the lines of a batch come from and go to: local files, - for the standard streams, http(s) to read from."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, BinaryIO

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def open_lines(source: str) -> Iterator[Iterator[bytes]]:
    """The lines of a file that are not empty. Raises InvalidValue."""
    if source.startswith(("http://", "https://")):
        lines = iter(_fetch(source).split(b"\n"))
        yield (line for line in lines if line.strip())
        return
    try:
        stream = sys.stdin.buffer if source == "-" else open(source, "rb")  # noqa: SIM115
    except OSError as error:
        raise InvalidValue("input_file", source, f"cannot be read: {error.strerror}") from error
    with stream:
        yield (line for line in stream if line.strip())


@contextlib.contextmanager
def open_output(target: str) -> Iterator[BinaryIO]:
    """Opened before anything slow. Raises InvalidValue."""
    if target.startswith(("http://", "https://")):
        raise InvalidValue("output_file", target, "must be a local path", remedy="upload the file afterwards")
    if target == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        stream = open(target, "wb")  # noqa: SIM115
    except OSError as error:
        raise InvalidValue("output_file", target, f"cannot be written: {error.strerror}") from error
    with stream:
        yield stream


def _fetch(url: str) -> bytes:
    import httpx

    try:
        return httpx.get(url, follow_redirects=True, timeout=60.0).raise_for_status().content
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidValue("input_file", url, f"cannot be fetched: {error}") from error
