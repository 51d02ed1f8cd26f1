"""What every model source promises, and the value it gives; knows no concrete source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SourceKind = Literal["local", "pypi", "hub", "modelscope"]


class ModelFiles(NamedTuple):
    """A model that lies on this machine."""

    path: Path
    """A folder, or the one file that is the checkpoint."""
    provenance: str
    """Where it came from, exact enough to fetch the same bytes again."""
    kind: SourceKind
    generation_config: Mapping[str, float] = {}
    """Sampling defaults that come with the name; the checkpoint's own win."""


class Progress(Protocol):
    """Told how far a download is; called often, so it must be cheap."""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of `what`; total is None while it is unknown."""


class FetchOptions(NamedTuple):
    """What a source may need besides the reference."""

    cache: Path
    """Root of the cache folder."""
    progress: Progress
    revision: str | None = None
    download_dir: str | None = None
    tokenizer_only: bool = False
    """Fetch the tokenizer's files and the config, no weights."""


class ModelSource(Protocol):
    """One place that models come from."""

    def matches(self, ref: str) -> bool:
        """True when this source understands the reference; opens no socket."""

    def fetch(self, ref: str, options: FetchOptions) -> ModelFiles:
        """Make the model lie on this machine. Raises InferplaneError with a code "source.…" and a remedy."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""
