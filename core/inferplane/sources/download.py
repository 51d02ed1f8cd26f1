"""One file over HTTP: streamed, resumed, checked. Knows no index and no hub."""

from __future__ import annotations

import errno
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.sources.cache import CHUNK, check_space, make_folder

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from inferplane.sources.protocol import Progress

log = get_logger(__name__)

ATTEMPTS = 4


class Expected(NamedTuple):
    """What is known of a file before it is downloaded; None: unknown, not checked."""

    size: int | None = None
    sha256: str | None = None


class _Interrupted(Exception):
    """The connection ended early; what arrived stays for the next attempt."""


def redacted(url: str) -> str:
    """The URL without user name and password, for messages."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def download(client: httpx.Client, url: str, target: Path, expected: Expected, progress: Progress) -> str:
    """Download to `target`, which appears only when complete and right; gives its SHA-256.

    What an interrupted download left beside the target (`….part`) is continued with a range request. Raises
    InferplaneError with code "source.hash_mismatch", "source.size_mismatch", "source.http", "source.no_network",
    "source.disk_full" or "source.not_writable".
    """
    make_folder(target.parent)
    try:
        return _download(client, url, target, expected, progress)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _download(client: httpx.Client, url: str, target: Path, expected: Expected, progress: Progress) -> str:
    part = target.with_name(target.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    sha256 = _complete(client, url, part, expected, progress)
    problem = _problem(part, sha256, expected)
    if problem and resumed:
        # The rest may belong to another version of the file than the part that was there.
        part.unlink()
        sha256 = _complete(client, url, part, expected, progress)
        problem = _problem(part, sha256, expected)
    if problem:
        part.unlink()
        code, text = problem
        raise InferplaneError(
            f"{redacted(url)}: {text}",
            code=code,
            remedy="try again; if it repeats, the server or a proxy gives another file than the one that is asked for",
        )
    part.replace(target)
    return sha256


def _cannot_write(target: Path, error: OSError) -> InferplaneError:
    """The space may have gone to somebody else after it was looked at, or be a quota's."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return InferplaneError(
        f"{target.name} cannot be written to {target.parent}: {error.strerror or error}",
        code="source.disk_full" if full else "source.not_writable",
        remedy=f"{'free some space there' if full else 'make the folder writable'}, or choose another folder with "
        "--download-dir or INFERPLANE_CACHE; what has arrived is kept and continued",
    )


def _problem(part: Path, sha256: str, expected: Expected) -> tuple[str, str] | None:
    size = part.stat().st_size
    if expected.size is not None and size != expected.size:
        return "source.size_mismatch", f"{size} bytes arrived, {expected.size} were announced"
    if expected.sha256 is not None and sha256 != expected.sha256.lower():
        return "source.hash_mismatch", f"its SHA-256 is {sha256}, {expected.sha256} is expected"
    return None


def _complete(client: httpx.Client, url: str, part: Path, expected: Expected, progress: Progress) -> str:
    """Fetch until the part is complete; a broken connection is tried again from where it broke."""
    import httpx

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _attempt(client, url, part, expected, progress)
        except (httpx.TransportError, _Interrupted) as error:
            if attempt == ATTEMPTS or isinstance(error, httpx.UnsupportedProtocol):
                raise no_network(url, error) from error
            log.warning("%s: %s; continuing (attempt %d of %d)", redacted(url), error, attempt + 1, ATTEMPTS)
    raise AssertionError("unreachable")


def _attempt(client: httpx.Client, url: str, part: Path, expected: Expected, progress: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    if part.exists():
        with part.open("rb") as file:
            while block := file.read(CHUNK):
                digest.update(block)
                done += len(block)
    if expected.size is not None and done == expected.size:
        return digest.hexdigest()
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:
            part.unlink()
            raise _Interrupted("the server cannot continue the download")
        check_status(response, url)
        if done and response.status_code != 206:
            digest, done = hashlib.sha256(), 0
        total = _total(response, done, expected.size)
        if total is not None:
            check_space(part.parent, total - done)
        with part.open("ab" if done else "wb") as file:
            # Blocks as they arrive: a larger block would be lost when the connection breaks.
            for block in response.iter_raw():
                file.write(block)
                digest.update(block)
                done += len(block)
                progress(part.name.removesuffix(".part"), done, total)
                if expected.size is not None and done > expected.size:
                    # Never fill the disk with what is wrong already.
                    return digest.hexdigest()
        if total is not None and done < total:
            raise _Interrupted(f"the connection ended after {done} of {total} bytes")
    return digest.hexdigest()


def _total(response: httpx.Response, done: int, announced: int | None) -> int | None:
    length = response.headers.get("Content-Length")
    return done + int(length) if length is not None and length.isdigit() else announced


def check_status(response: httpx.Response, url: str) -> None:
    """Raise InferplaneError with code "source.http" for anything but a success."""
    if response.is_success:
        return
    hints = {
        401: "the server wants credentials",
        403: "the server refuses; check the credentials",
        404: "check the name and the version",
        429: "too many requests; wait a while",
    }
    raise InferplaneError(
        f"{redacted(url)} answered {response.status_code} {response.reason_phrase}",
        code="source.http",
        remedy=hints.get(response.status_code, "try again later"),
    )


def no_network(url: str, error: Exception) -> InferplaneError:
    """The error for a server that cannot be reached."""
    return InferplaneError(
        f"{redacted(url)} cannot be reached: {str(error) or type(error).__name__}",
        code="source.no_network",
        remedy="check the connection and the proxy settings (HTTPS_PROXY), or give the path of a local model",
    )
