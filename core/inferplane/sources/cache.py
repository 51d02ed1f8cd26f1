"""The cache folder: where it is, locks between processes, records of verified files. Knows no source."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane.errors import InferplaneError
from inferplane.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = get_logger(__name__)

VARIABLE = "INFERPLANE_CACHE"
CHUNK = 1 << 20


def cache_root() -> Path:
    """The folder of INFERPLANE_CACHE, else ~/.cache/inferplane. It may not exist yet."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/inferplane").expanduser()


class FileRecord(NamedTuple):
    """What was known about a file when its hash was checked."""

    size: int
    mtime_ns: int
    sha256: str

    def matches(self, path: Path) -> bool:
        """True while the file has the size and time of then."""
        try:
            status = path.stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)


def record_file(path: Path, sha256: str) -> FileRecord:
    """The record of a file whose hash is known to be this."""
    status = path.stat()
    return FileRecord(status.st_size, status.st_mtime_ns, sha256)


def hash_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, in hexadecimal; `progress` gets the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The file's value, or None when it is missing or damaged: a record can always be made again."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Replace the file in one step."""
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8"))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file in one step, so that a reader sees the old content or the new."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create the folder and its parents. Raises InferplaneError when the cache cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InferplaneError(
            f"the cache folder {path} cannot be created: {error.strerror or error}",
            code="source.cache_unwritable",
            remedy=f"set {VARIABLE} to a folder that you may write to",
        ) from error


def check_space(folder: Path, needed: int) -> None:
    """Raise InferplaneError when the folder's disk has less than `needed` bytes left."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InferplaneError(
            f"{needed / 1e9:.2f} GB are needed in {folder}, {free / 1e9:.2f} GB are free",
            code="source.disk_full",
            remedy=f"free some space, or set {VARIABLE} (or --download-dir) to a folder on a larger disk",
        )


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, so that of several processes that start at once only one downloads."""
    from filelock import FileLock, Timeout

    make_folder(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        log.info("waiting for another process that is fetching %s", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
