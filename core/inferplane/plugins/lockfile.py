"""The lock file: which plugin distributions may run, with version and hash. Imports no plugin and decides no choice.

The hash of an installed wheel is that of its RECORD, less what an installer adds by itself (compiled files, scripts
with a path in them, notes of its own), so that two environments with the same wheel agree; each file is compared with
its RECORD too, none may have been added to its packages, and an import must find its modules and nobody else's of the
same name (`import_path.py`). An editable install has no such record: its hash is that of the files that an import of
its entry points would find, so that a file that was added, or one of the same name that is found first, changes it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from inferplane.errors import InferplaneError
from inferplane.plugins.import_path import located, modules_from
from inferplane.plugins.inventory import CORE, PREFIX, PluginEntry

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
    record = _record_of(distribution)
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
    edited = []
    for file, expected in _recorded(_record_of(distribution) or ""):
        algorithm, _, value = expected.partition("=")
        try:
            digest = hashlib.new(algorithm, Path(str(distribution.locate_file(file))).read_bytes()).digest()
        except (OSError, ValueError):
            edited.append(file)
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != value.rstrip("="):
            edited.append(file)
    return edited


def added_files(name: str) -> list[str]:
    """Files in the packages of an installed wheel that its RECORD does not name; compiled ones apart.

    A folder without an `__init__.py` of this wheel may be shared with others, and is looked at below only.
    """
    distribution = importlib.metadata.distribution(name)
    recorded = {file for file, _ in _recorded(_record_of(distribution) or "")}
    packages = {PurePosixPath(file).parent for file in recorded if PurePosixPath(file).name == "__init__.py"}
    added = []
    for package in sorted(packages):
        if not packages.isdisjoint(package.parents):
            continue
        root = Path(str(distribution.locate_file(str(package))))
        for path in sorted(root.rglob("*")):
            file = (package / path.relative_to(root)).as_posix()
            if not path.is_dir() and "__pycache__" not in path.parts and file not in recorded:
                added.append(file)
    return added


def foreign_modules(name: str) -> list[str]:
    """Modules of an installed wheel's entry points that an import would take from elsewhere, as "module is FILE"."""
    distribution = importlib.metadata.distribution(name)
    record = _record_of(distribution)
    if record is None:
        return []
    ours = {Path(str(distribution.locate_file(file))).resolve() for file, _ in _recorded(record)}
    foreign = {}
    for value in sorted({point.value.partition(":")[0] for point in _plugin_points(distribution)}):
        for module, origin in modules_from(value):
            if origin is None or origin.resolve() not in ours:
                foreign[module] = f"{module} is {origin or 'nowhere'}"
    return list(foreign.values())


def _plugin_points(distribution: Distribution) -> list[importlib.metadata.EntryPoint]:
    return [point for point in distribution.entry_points if point.group.startswith(PREFIX)]


def _record_of(distribution: Distribution) -> str | None:
    """Its RECORD; None when nothing there tells what an import would run."""
    return None if _is_editable(distribution) else distribution.read_text("RECORD")


def _difference(plugin: LockedPlugin) -> str:
    """What is wrong with an installed distribution; "" when it is what was locked."""
    try:
        now = locked_now(plugin.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{plugin.name} is locked at {plugin.version} and not installed"
    if now != plugin:
        return f"{plugin.name} is locked at {plugin} and {now} is installed"
    changes = edited_files(plugin.name)
    changes += [f"{file} was added" for file in added_files(plugin.name)]
    if changes:
        return f"{plugin.name} {plugin.version} is not as it was installed: {', '.join(changes)}"
    if foreign := foreign_modules(plugin.name):
        return f"an import would not find the modules of {plugin.name} {plugin.version}: {', '.join(foreign)}"
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
        spec = located(module)
        if spec is None:
            continue
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield f"{module}/{path.relative_to(folder).as_posix()}", path.read_bytes()
        if spec.submodule_search_locations is None and spec.origin is not None and Path(spec.origin).is_file():
            yield f"{module}.py", Path(spec.origin).read_bytes()
