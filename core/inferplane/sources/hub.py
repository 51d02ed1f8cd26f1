"""Models on the Hugging Face Hub, through its own client and cache. Imports the client only when it is used."""

from __future__ import annotations

import os
import re
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.log import get_logger
from inferplane.sources.protocol import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inferplane.sources.protocol import FetchOptions, Progress

log = get_logger(__name__)

ATTEMPTS = 3
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
DESCRIPTION = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
"""Config, tokenizer and chat template files."""
IGNORED = ("*/*.safetensors", "*/*.safetensors.index.json", "consolidated*.safetensors")
"""Copies of the weights in other layouts."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_DEFAULT_ENDPOINT = "https://huggingface.co"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_SPLIT = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


class HubRef(NamedTuple):
    """A parsed reference."""

    repo: str
    file: str | None
    """The one GGUF file that is wanted; None: the safetensors folder."""


def parse_ref(ref: str) -> HubRef:
    """Read `org/repo`, `org/repo:FILE.gguf` or `org/repo/FILE.gguf`. Raises InvalidValue for anything else."""
    repo, colon, file = ref.partition(":")
    if not colon and ref.lower().endswith(".gguf") and ref.count("/") >= 2:
        owner, name, file = ref.split("/", 2)
        repo = f"{owner}/{name}"
    if not _ID.fullmatch(repo) or ".." in repo or (colon and not file):
        raise InvalidValue("model", ref, "is not a hub id", remedy="write ORG/NAME or ORG/NAME:FILE.gguf")
    if file and (not file.lower().endswith(".gguf") or ".." in file.split("/") or file.startswith("/")):
        raise InvalidValue("model", ref, f"{file!r} is not a GGUF file", remedy="write ORG/NAME:FILE.gguf")
    return HubRef(repo, file or None)


def wanted_patterns(file: str | None, tokenizer_only: bool) -> tuple[str, ...]:
    """Glob patterns of the files to fetch; of a GGUF file in several parts, all parts."""
    if file is None:
        return DESCRIPTION if tokenizer_only else DESCRIPTION + WEIGHTS
    split = _SPLIT.fullmatch(file)
    return (f"{escape(split['stem'])}-?????-of-{split['count']}.gguf",) if split else (escape(file),)


def check_weights(names: Iterable[str], ref: str) -> None:
    """Raise InferplaneError saying what to do when a repository with these files has no safetensors weights."""
    names = sorted(names)
    if any(name.endswith(".safetensors") and "/" not in name for name in names):
        return
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if ggufs:
        raise InferplaneError(
            f"{ref} holds GGUF files, of which one has to be named",
            code="source.ambiguous",
            remedy=f"write {ref}:FILE.gguf; there are: {', '.join(ggufs)}",
        )
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise InferplaneError(
            f"{ref} has only pickle weights ({', '.join(pickles[:3])}); reading a pickle can run any code",
            code="source.pickle_only",
            remedy="use a revision or another repository with safetensors, or convert it in a place that you trust",
        )
    raise InferplaneError(
        f"{ref} has no safetensors weights" + (f"; it has: {', '.join(names[:10])}" if names else ""),
        code="source.no_model",
        remedy="check that this is the repository of a model",
    )


def is_offline() -> bool:
    """True when HF_HUB_OFFLINE asks for no network."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


class HubSource:
    """Follows the client's own variables: HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME."""

    def matches(self, ref: str) -> bool:
        """See `ModelSource.matches`."""
        try:
            parse_ref(ref)
        except InvalidValue:
            return False
        return True

    def fetch(self, ref: str, options: FetchOptions) -> ModelFiles:
        """See `ModelSource.fetch`. Codes: "source.gated", "source.not_found", "source.revision_not_found",
        "source.offline", "source.no_network", "source.unauthorized", "source.http", "source.pickle_only",
        "source.ambiguous", "source.file_not_found", "source.no_model"."""
        wanted = parse_ref(ref)
        snapshot = self._snapshot(wanted, options)
        provenance = f"hub {wanted.repo}@{snapshot.name}"
        if wanted.file is not None:
            path = snapshot / wanted.file
            if not path.exists():
                self._missing_file(wanted, options, snapshot)
            return ModelFiles(path, f"{provenance}:{wanted.file}", "hub")
        if not options.tokenizer_only and not any(snapshot.glob("*.safetensors")):
            check_weights(self._names(wanted, options, snapshot), wanted.repo)
            raise InferplaneError(
                f"{wanted.repo}: the weights are missing in {snapshot}",
                code="source.incomplete",
                remedy="fetch it again with the network on (HF_HUB_OFFLINE=0)",
            )
        return ModelFiles(snapshot, provenance, "hub")

    def _snapshot(self, wanted: HubRef, options: FetchOptions) -> Path:
        from huggingface_hub import snapshot_download

        for attempt in range(1, ATTEMPTS + 1):
            try:
                folder = snapshot_download(
                    wanted.repo,
                    revision=options.revision,
                    cache_dir=options.download_dir,
                    endpoint=_endpoint(),
                    local_files_only=is_offline(),
                    allow_patterns=list(wanted_patterns(wanted.file, options.tokenizer_only)),
                    ignore_patterns=list(IGNORED),
                    tqdm_class=_reporting_bar(wanted.repo, options.progress),
                )
            except Exception as error:
                if attempt == ATTEMPTS or not _is_connection_error(error):
                    _raise(error, wanted.repo, options.revision)
                # The client continues from what has arrived.
                log.warning("%s: %s; continuing (attempt %d of %d)", wanted.repo, error, attempt + 1, ATTEMPTS)
            else:
                break
        return Path(folder)

    def _names(self, wanted: HubRef, options: FetchOptions, snapshot: Path) -> list[str]:
        """All files of the repository, those that were not fetched included; offline, those that are here."""
        if is_offline():
            return [str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()]
        from huggingface_hub import HfApi

        try:
            return list(HfApi(endpoint=_endpoint()).list_repo_files(wanted.repo, revision=options.revision))
        except Exception as error:
            _raise(error, wanted.repo, options.revision)

    def _missing_file(self, wanted: HubRef, options: FetchOptions, snapshot: Path) -> NoReturn:
        ggufs = [name for name in self._names(wanted, options, snapshot) if name.lower().endswith(".gguf")]
        raise InferplaneError(
            f"{wanted.repo} has no file {wanted.file!r}" + (" in the cache" if is_offline() else ""),
            code="source.file_not_found",
            remedy=f"there are: {', '.join(sorted(ggufs)) or 'no GGUF files'}",
        )


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")


def _raise(error: Exception, repo: str, revision: str | None) -> NoReturn:
    """Turn the client's errors into ours, each with a code and a remedy."""
    from huggingface_hub import errors

    translated: InferplaneError | None = None
    if isinstance(error, errors.GatedRepoError):
        translated = InferplaneError(
            f"{repo} is gated: its authors want you to accept their terms",
            code="source.gated",
            remedy=f"accept them at {_endpoint()}/{repo}, then set HF_TOKEN to a token of that account",
        )
    elif isinstance(error, errors.RevisionNotFoundError):
        translated = InferplaneError(
            f"{repo} has no revision {revision!r}",
            code="source.revision_not_found",
            remedy=f"--revision takes a branch, a tag or a commit; see {_endpoint()}/{repo}",
        )
    elif isinstance(error, errors.RepositoryNotFoundError):
        translated = InferplaneError(
            f"there is no model {repo!r} on {_endpoint()}, or it is private",
            code="source.not_found",
            remedy="check the spelling; for a private model set HF_TOKEN; a local folder is written ./FOLDER",
        )
    elif isinstance(error, errors.LocalEntryNotFoundError):
        translated = _not_in_cache(repo, revision, error)
    elif isinstance(error, errors.HFValidationError):
        translated = InvalidValue("model", repo, str(error), remedy="write ORG/NAME")
    elif isinstance(error, errors.HfHubHTTPError):
        translated = _http_error(repo, error)
    elif _is_connection_error(error):
        translated = _unreachable(repo, error)
    elif isinstance(error, OSError):
        translated = InferplaneError(
            f"{repo}: {error}", code="source.cache_unwritable", remedy="see --download-dir and HF_HOME"
        )
    if translated is None:
        raise error
    raise translated from error


def _is_connection_error(error: Exception) -> bool:
    """True for the errors of whatever HTTP library the client uses; its own errors live in its own modules."""
    return isinstance(error, ConnectionError) or type(error).__module__.split(".")[0] in {"httpx", "httpx2", "requests"}


def _http_error(repo: str, error: Any) -> InferplaneError:
    status = getattr(error.response, "status_code", None)
    if status in (401, 403):
        return InferplaneError(
            f"{_endpoint()} refuses {repo} ({status})",
            code="source.unauthorized",
            remedy="set HF_TOKEN to a valid token that may read this model",
        )
    return InferplaneError(
        f"{_endpoint()} answered {status} for {repo}: {error}", code="source.http", remedy="try again later"
    )


def _not_in_cache(repo: str, revision: str | None, error: Exception) -> InferplaneError:
    if is_offline():
        at = f" at revision {revision}" if revision else ""
        return InferplaneError(
            f"{repo}{at} is not complete in the cache, and HF_HUB_OFFLINE forbids the network",
            code="source.offline",
            remedy="fetch it once with HF_HUB_OFFLINE=0, or give the path of a local folder",
        )
    return _unreachable(repo, error.__cause__ if isinstance(error.__cause__, Exception) else error)


def _unreachable(repo: str, error: Exception) -> InferplaneError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return _http_error(repo, error)
    return InferplaneError(
        f"{repo} is not in the cache, and {_endpoint()} cannot be reached ({str(error) or type(error).__name__})",
        code="source.no_network",
        remedy="check the connection, HF_ENDPOINT and the proxy (HTTPS_PROXY), or give the path of a local folder",
    )


def _reporting_bar(what: str, progress: Progress) -> type[Any]:
    """A progress bar class for the client that draws nothing and tells our callback the bytes."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # exported without being listed

    class ReportingBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            name = kwargs.pop("name", None) or ""
            # The client keeps a second bar for what the network carried; one is enough.
            self._reports = kwargs.get("unit") == "B" and not name.endswith(".transfer")
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self._reports:
                progress(what, int(self.n), int(self.total) if self.total else None)
            return None

    return ReportingBar
