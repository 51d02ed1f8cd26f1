"""Models on ModelScope, over its public HTTP API. Knows nothing of the Hugging Face Hub but its file patterns."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.sources.cache import FileRecord, hash_file, locked, read_json, record_file, write_json
from inferplane.sources.download import Expected, download, no_network
from inferplane.sources.hub import IGNORED, check_weights, is_offline, parse_ref, wanted_patterns
from inferplane.sources.protocol import ModelFiles

if TYPE_CHECKING:
    import httpx

    from inferplane.sources.hub import HubRef
    from inferplane.sources.protocol import FetchOptions

log = get_logger(__name__)

DEFAULT_ENDPOINT = "https://www.modelscope.cn"
DEFAULT_REVISION = "master"
_RECORD = ".inferplane.json"


class RemoteFile(NamedTuple):
    """One file of a repository as the API lists it."""

    path: str
    size: int | None
    sha256: str | None


def endpoint() -> str:
    """MODELSCOPE_ENDPOINT, else the host of MODELSCOPE_DOMAIN, else the public site."""
    if address := os.environ.get("MODELSCOPE_ENDPOINT"):
        return address.rstrip("/")
    domain = os.environ.get("MODELSCOPE_DOMAIN")
    return f"https://{domain}" if domain else DEFAULT_ENDPOINT


class ModelScopeSource:
    """Takes the same references as the hub; the token is MODELSCOPE_API_TOKEN."""

    def matches(self, ref: str) -> bool:
        """See `ModelSource.matches`."""
        from inferplane.sources.hub import HubSource

        return "/" in ref and HubSource().matches(ref)

    def fetch(self, ref: str, options: FetchOptions) -> ModelFiles:
        """See `ModelSource.fetch`. Codes as for the hub, without "source.gated" and "source.revision_not_found"."""
        wanted = parse_ref(ref)
        revision = options.revision or DEFAULT_REVISION
        root = (
            Path(options.download_dir).expanduser() if options.download_dir else options.cache / "models" / "modelscope"
        )
        folder = root / wanted.repo.replace("/", "--") / revision.replace("/", "--")
        with locked(folder.with_name(folder.name + ".lock"), wanted.repo):
            if is_offline():
                self._check_cached(wanted, options, folder, "HF_HUB_OFFLINE forbids the network")
            else:
                self._update(wanted, revision, options, folder)
        suffix = f":{wanted.file}" if wanted.file else ""
        path = folder / wanted.file if wanted.file else folder
        return ModelFiles(path, f"modelscope {wanted.repo}@{revision}{suffix}", "modelscope")

    def _update(self, wanted: HubRef, revision: str, options: FetchOptions, folder: Path) -> None:
        import httpx

        headers = {"User-Agent": "inferplane"}
        cookies = {}
        if token := os.environ.get("MODELSCOPE_API_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
            cookies["m_session_id"] = token
        timeout = httpx.Timeout(60.0, connect=15.0)
        with httpx.Client(headers=headers, cookies=cookies, timeout=timeout, follow_redirects=True) as client:
            try:
                files = _list_files(client, wanted.repo, revision)
            except InferplaneError as error:
                if error.code != "source.no_network":
                    raise
                self._check_cached(wanted, options, folder, error.message)
                log.warning("%s; using what the cache has of %s", error.message, wanted.repo)
                return
            _fetch_files(client, wanted, revision, _select(files, wanted, options.tokenizer_only), options, folder)

    def _check_cached(self, wanted: HubRef, options: FetchOptions, folder: Path, reason: str) -> None:
        records = _records(folder)
        needed = wanted_patterns(wanted.file, options.tokenizer_only)
        have = [name for name in records if any(fnmatch(name, pattern) for pattern in needed)]
        complete = bool(have) and all(records[name].matches(folder / name) for name in have)
        if not wanted.file and not options.tokenizer_only:
            complete = complete and any(name.endswith(".safetensors") for name in have)
        if not complete:
            raise InferplaneError(
                f"{wanted.repo} is not complete in the cache {folder}: {reason}",
                code="source.offline" if is_offline() else "source.no_network",
                remedy="fetch it once with the network on, or give the path of a local folder",
            )


def _list_files(client: httpx.Client, repo: str, revision: str) -> list[RemoteFile]:
    import httpx

    url = f"{endpoint()}/api/v1/models/{repo}/repo/files"
    try:
        response = client.get(url, params={"Revision": revision, "Recursive": "true"})
    except httpx.TransportError as error:
        raise no_network(url, error) from error
    if response.status_code == 404:
        raise InferplaneError(
            f"there is no model {repo!r} with revision {revision!r} on {endpoint()}, or it is private",
            code="source.not_found",
            remedy="check the spelling and --revision; for a private model set MODELSCOPE_API_TOKEN",
        )
    if response.status_code in (401, 403):
        raise InferplaneError(
            f"{endpoint()} refuses {repo} ({response.status_code})",
            code="source.unauthorized",
            remedy="set MODELSCOPE_API_TOKEN to a token that may read this model",
        )
    try:
        answer = response.json()
        if not response.is_success or answer.get("Code") != 200:
            raise InferplaneError(
                f"{endpoint()} answered {response.status_code} for {repo}: {answer.get('Message') or answer}",
                code="source.http",
                remedy="check the model's name and --revision, or try again later",
            )
        return [_remote_file(entry, repo) for entry in answer["Data"]["Files"] if entry.get("Type") != "tree"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InferplaneError(
            f"{endpoint()} answered something else than a list of files for {repo}",
            code="source.http",
            remedy="check MODELSCOPE_ENDPOINT and the proxy settings, or try again later",
        ) from error


def _remote_file(entry: dict[str, Any], repo: str) -> RemoteFile:
    path = str(entry["Path"])
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\\" in path or ":" in path:
        raise InferplaneError(
            f"{repo} lists a file {path!r}, which would leave the folder that it is kept in",
            code="source.bad_path",
            remedy="do not use this repository",
        )
    size = entry.get("Size")
    return RemoteFile(path, int(size) if size is not None else None, entry.get("Sha256") or None)


def _select(files: list[RemoteFile], wanted: HubRef, tokenizer_only: bool) -> list[RemoteFile]:
    patterns = wanted_patterns(wanted.file, tokenizer_only)
    chosen = [
        file
        for file in files
        if any(fnmatch(file.path, pattern) for pattern in patterns)
        and not any(fnmatch(file.path, pattern) for pattern in IGNORED)
    ]
    if wanted.file and not any(file.path == wanted.file for file in chosen):
        ggufs = ", ".join(sorted(file.path for file in files if file.path.lower().endswith(".gguf")))
        raise InferplaneError(
            f"{wanted.repo} has no file {wanted.file!r}",
            code="source.file_not_found",
            remedy=f"there are: {ggufs or 'no GGUF files'}",
        )
    if not wanted.file and not tokenizer_only:
        check_weights((file.path for file in files), wanted.repo)
    return chosen


def _fetch_files(
    client: httpx.Client, wanted: HubRef, revision: str, files: list[RemoteFile], options: FetchOptions, folder: Path
) -> None:
    records = _records(folder)
    url = f"{endpoint()}/api/v1/models/{wanted.repo}/repo"
    for file in files:
        target = folder / file.path
        record = records.get(file.path)
        known = record is not None and record.matches(target)
        if known and record is not None and file.sha256 in (None, record.sha256) and file.size in (None, record.size):
            continue
        if target.is_file() and file.sha256 and hash_file(target) == file.sha256:
            digest = file.sha256
        else:
            query = str(client.build_request("GET", url, params={"Revision": revision, "FilePath": file.path}).url)
            digest = download(client, query, target, Expected(file.size, file.sha256), options.progress)
        records[file.path] = record_file(target, digest)
        write_json(folder / _RECORD, records)


def _records(folder: Path) -> dict[str, FileRecord]:
    value = read_json(folder / _RECORD)
    try:
        return {str(name): FileRecord(*fields) for name, fields in value.items()}
    except (AttributeError, TypeError):
        return {}
