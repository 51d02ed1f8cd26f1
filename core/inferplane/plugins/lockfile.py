"""The lock file: which plugin distributions may run, with version and hash. Imports no plugin and decides no choice.

The hash of an installed wheel is that of its RECORD, less what an installer adds by itself (compiled files, scripts
with a path in them, notes of its own), so that two environments with the same wheel agree; each file is compared with
its RECORD too. An editable install has no such record: its hash is that of the files of the packages that its entry
points name.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

import msgspec

from inferplane.errors import InferplaneError
from inferplane.plugins.inventory import CORE, PluginEntry

_OWN_NOTES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_RELOCK = "`inferplane plugins lock` accepts what is installed"


class LockedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One distribution as it was when it was locked."""

    name: str
    version: str
    hash: str
    """"sha256:<hex>"."""
    of: Literal["RECORD", "files"]
    """What was hashed."""

    def __str__(self) -> str:
        return f"{self.version} ({self.hash} of its {self.of})"


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    schema: Literal[1] = 1
    plugins: tuple[LockedPlugin, ...] = ()


def lock_installed(entries: Iterable[PluginEntry]) -> Lock:
    """Lock every plugin distribution of the entries as it is installed now."""
    names = sorted({entry.distribution for entry in entries} - {CORE})
    return Lock(plugins=tuple(locked_now(name) for name in names))


def write_lock(lock: Lock, path: Path) -> None:
    """Write the file. Raises InferplaneError when it cannot be written."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(lock)) + b"\n")
    except OSError as error:
        raise InferplaneError(
            f"cannot write {path}: {error.strerror}", code="plugins.lock", remedy="choose another file with --output"
        ) from error


def read_lock(path: Path) -> Lock:
    """Read the file. Raises InferplaneError when it is missing or no lock file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lock)
    except OSError as error:
        raise InferplaneError(
            f"the plugins are locked, and {path} cannot be read: {error.strerror}",
            code="plugins.lock",
            remedy="`inferplane plugins lock` writes it; --plugins-lock names another",
        ) from error
    except msgspec.MsgspecError as error:
        raise InferplaneError(f"{path} is not a lock file: {error}", code="plugins.lock", remedy=_RELOCK) from error


def require_locked(lock: Lock, path: Path) -> None:
    """Raise InferplaneError naming every locked distribution that is missing or not what was locked."""
    problems = {plugin: text for plugin in lock.plugins if (text := _difference(plugin))}
    if problems:
        versions = " ".join(f"{plugin.name}=={plugin.version}" for plugin in problems)
        raise InferplaneError(
            f"{path} does not hold: {'; '.join(problems.values())}",
            code="plugins.locked",
            remedy=f"pip install --force-reinstall --no-deps {versions}; or {_RELOCK}",
        )


def locked_now(name: str) -> LockedPlugin:
    """An installed distribution as a line of the lock. Raises PackageNotFoundError."""
    distribution = importlib.metadata.distribution(name)
    record = None if _is_editable(distribution) else distribution.read_text("RECORD")
    digest = hashlib.sha256()
    if record is None:
        for label, content in _source_files(distribution):
            digest.update(f"{label}\0{len(content)}\0".encode())
            digest.update(content)
    else:
        for file, expected in _recorded(record):
            digest.update(f"{file},{expected}\n".encode())
    of: Literal["RECORD", "files"] = "files" if record is None else "RECORD"
    return LockedPlugin(name=name, version=distribution.version, hash=f"sha256:{digest.hexdigest()}", of=of)


def edited_files(name: str) -> list[str]:
    """Files of an installed wheel that are not what its RECORD says, or gone; none for an editable install."""
    distribution = importlib.metadata.distribution(name)
    record = None if _is_editable(distribution) else distribution.read_text("RECORD")
    edited = []
    for file, expected in _recorded(record or ""):
        algorithm, _, value = expected.partition("=")
        try:
            digest = hashlib.new(algorithm, Path(str(distribution.locate_file(file))).read_bytes()).digest()
        except (OSError, ValueError):
            edited.append(file)
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != value.rstrip("="):
            edited.append(file)
    return edited


def _difference(plugin: LockedPlugin) -> str:
    """What is wrong with an installed distribution; "" when it is what was locked."""
    try:
        now = locked_now(plugin.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{plugin.name} is locked at {plugin.version} and not installed"
    if now != plugin:
        return f"{plugin.name} is locked at {plugin} and {now} is installed"
    if edited := edited_files(plugin.name):
        return f"{plugin.name} {plugin.version} is not as it was installed: {', '.join(edited)}"
    return ""


def _is_editable(distribution: Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    if text is None:
        return False
    try:
        return bool(json.loads(text).get("dir_info", {}).get("editable", False))
    except (ValueError, AttributeError):
        return False


def _recorded(record: str) -> Iterator[tuple[str, str]]:
    """(file, "sha256=<base64>") of what the wheel itself brought, in order of name."""
    for row in sorted(csv.reader(record.splitlines())):
        if len(row) < 2 or not row[1]:
            continue
        path = Path(row[0])
        ours = path.parent.name.endswith(".dist-info") and path.name in _OWN_NOTES
        if not ours and ".." not in path.parts and not path.is_absolute() and path.suffix != ".pyc":
            yield row[0], row[1]


def _source_files(distribution: Distribution) -> Iterator[tuple[str, bytes]]:
    """(label, content) of what an editable distribution would run: its entry points and their packages."""
    yield "entry_points.txt", (distribution.read_text("entry_points.txt") or "").encode()
    for module in sorted({point.value.partition(":")[0].partition(".")[0] for point in distribution.entry_points}):
        # The spec of a top-level module is found without importing it.
        spec = importlib.util.find_spec(module)
        if spec is None:
            continue
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield f"{module}/{path.relative_to(folder).as_posix()}", path.read_bytes()
        if spec.submodule_search_locations is None and spec.origin is not None and Path(spec.origin).is_file():
            yield f"{module}.py", Path(spec.origin).read_bytes()
