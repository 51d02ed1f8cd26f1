"""Models that already lie on this machine. Opens no socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inferplane.errors import InferplaneError
from inferplane.sources.protocol import ModelFiles

if TYPE_CHECKING:
    from inferplane.sources.protocol import FetchOptions


def looks_like_path(ref: str) -> bool:
    """True for what can only be meant as a path: no hub id or package begins like this."""
    return ref.startswith(("/", "./", "../", "~", ".\\", "..\\")) or ref in {".", ".."} or ref[1:3] in {":\\", ":/"}


class LocalSource:
    """An existing folder or file, or a reference that can only be meant as one."""

    def matches(self, ref: str) -> bool:
        """See `ModelSource.matches`."""
        return looks_like_path(ref) or _exists(ref)

    def fetch(self, ref: str, options: FetchOptions) -> ModelFiles:
        """See `ModelSource.fetch`. Code "source.no_such_path" for a path that does not exist."""
        path = Path(ref).expanduser()
        if not path.exists():
            raise InferplaneError(
                f"model={ref!r}: there is no such file or folder",
                code="source.no_such_path",
                remedy=_remedy(path),
            )
        path = path.resolve() if path.is_dir() else path.absolute()
        return ModelFiles(path, f"local {path}", "local")


def _exists(ref: str) -> bool:
    try:
        return bool(ref) and Path(ref).exists()
    except (OSError, ValueError):
        # Too long for a file system, or with characters that no path has.
        return False


def _remedy(path: Path) -> str:
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return f"check the path; {parent} is the part of it that exists. A hub id is written without a leading . / or ~"
