"""Cards of plugins' formats: made in a child process, kept on disk until the checkpoint or the format changes."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferplane.checkpoint.card_child import CardReply, CardRequest
from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.plugins.child_process import describe_exit, run_child
from inferplane.sources.cache import hash_file, locked, make_folder, write_atomically
from inferplane_api.checkpoint import CheckpointCard

if TYPE_CHECKING:
    from inferplane.checkpoint.card import FoundFormat

log = get_logger(__name__)

TIMEOUT = 180.0
"""Seconds that a format gets to read one checkpoint's metadata and tokenizer."""
_LAYOUT = 1
"""Goes up when what is stored changes its meaning."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    card: CheckpointCard
    tokenizer_sha256: str | None
    check: str
    """SHA-256 of the two above, so that a damaged file is noticed."""


class CardCache:
    """The cards below one folder."""

    def __init__(self, folder: Path, timeout: float = TIMEOUT) -> None:
        self._folder = folder
        self._timeout = timeout

    def get(self, path: Path, found: FoundFormat) -> CheckpointCard:
        """The card, from the cache or made now. Errors as `make_card`."""
        folder = self._folder / _key(path, found)
        card = _read(folder)
        if card is not None:
            return card
        with locked(folder.with_name(folder.name + ".lock"), f"the card of {path.name}"):
            card = _read(folder)
            if card is None:
                if folder.exists():
                    log.warning("%s is damaged and is made again", folder)
                    shutil.rmtree(folder)
                make_folder(folder)
                card = make_card(path, folder, found, self._timeout)
                _write(folder, card)
        return card


def make_card(path: Path, derived: Path, found: FoundFormat, timeout: float = TIMEOUT) -> CheckpointCard:
    """Let the format read the card in a child process; derived files go to the folder `derived`.

    Raises the format's own InferplaneError, or InferplaneError "checkpoint.format_failed" naming the distribution when
    the child crashes, hangs or answers nonsense.
    """
    request = CardRequest(load=found.spec.load, path=str(path), cache=str(derived), seconds=timeout)
    try:
        done = run_child("inferplane.checkpoint.card_child", msgspec.msgpack.encode(request), timeout)
    except subprocess.TimeoutExpired:
        raise _failed(path, found, f"it gave no answer within {timeout:.0f} s and was killed") from None
    if done.status != 0:
        raise _failed(path, found, f"its process ended: {describe_exit(done.status, done.last_line)}")
    try:
        reply = msgspec.msgpack.decode(done.stdout, type=CardReply)
    except msgspec.MsgspecError as error:
        raise _failed(path, found, f"its answer cannot be read: {error}") from error
    if reply.failure:
        raise _failed(path, found, reply.failure)
    if reply.card is None:
        raise InferplaneError(reply.message, code=reply.code, remedy=reply.remedy)
    return reply.card


def _key(path: Path, found: FoundFormat) -> str:
    real = path.resolve()
    files = [real] if real.is_file() else sorted(file for file in real.iterdir() if file.is_file())
    parts = [str(_LAYOUT), str(real), found.spec.id, found.distribution, found.version, *_code(found.spec.load)]
    for file in files:
        status = file.stat()
        parts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return f"{real.name[:40]}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def _code(load: str) -> list[str]:
    """Sizes and times of the format's source files: an editable installation changes without a new version.

    The package is located, not imported.
    """
    try:
        spec = importlib.util.find_spec(load.partition(":")[0].partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    return [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files if file.is_file()]


def _read(folder: Path) -> CheckpointCard | None:
    try:
        stored = msgspec.json.decode((folder / "card.json").read_bytes(), type=_Stored)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if stored.check != _check(stored.card, stored.tokenizer_sha256):
        return None
    tokenizer = stored.card.tokenizer_json
    if tokenizer is not None:
        try:
            if hash_file(Path(tokenizer)) != stored.tokenizer_sha256:
                return None
        except OSError:
            return None
    return stored.card


def _write(folder: Path, card: CheckpointCard) -> None:
    digest = hash_file(Path(card.tokenizer_json)) if card.tokenizer_json is not None else None
    stored = _Stored(card=card, tokenizer_sha256=digest, check=_check(card, digest))
    write_atomically(folder / "card.json", msgspec.json.encode(stored))


def _check(card: CheckpointCard, tokenizer_sha256: str | None) -> str:
    return hashlib.sha256(msgspec.json.encode([card, tokenizer_sha256], order="deterministic")).hexdigest()


def _failed(path: Path, found: FoundFormat, problem: str) -> InferplaneError:
    return InferplaneError(
        f"the format {found.spec.id} of {found.distribution} {found.version} could not read {path}: {problem}",
        code="checkpoint.format_failed",
        remedy=f"report it to the maintainers of {found.distribution}, or use another version of it or another file",
    )
