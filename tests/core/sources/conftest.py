"""A small HTTP server on loopback whose answers a test writes, and fakes of the hub, ModelScope and package indexes."""

from __future__ import annotations

import hashlib
import json
import shutil
import ssl
import subprocess
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Seen(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


class Answer(NamedTuple):
    """What goes back. `cut` ends the connection after so many bytes of the body."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012
    cut: int | None = None


class LoopbackServer:
    """Answers with `self.handle(Seen) -> Answer`, serves ranges by itself, and keeps what it was asked."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.handle: Callable[[Seen], Answer] = lambda seen: Answer(404)
        self.seen: list[Seen] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply(with_body=True)

            def do_HEAD(self) -> None:
                self._reply(with_body=False)

            def _reply(self, *, with_body: bool) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen = Seen(self.command, unquote(url.path), query, headers)
                outer.seen.append(seen)
                answer = outer.handle(seen)
                status, body, extra = answer.status, answer.body, dict(answer.headers)
                if status == 200 and headers.get("range", "").startswith("bytes="):
                    start = int(headers["range"].removeprefix("bytes=").split("-")[0])
                    extra["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                    status, body = (206, body[start:]) if start < len(body) else (416, b"")
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    self.wfile.write(body if answer.cut is None else body[: answer.cut])
                    if answer.cut is not None:
                        self.wfile.flush()
                        self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def paths(self, method: str = "GET") -> list[str]:
        """The paths that were asked for."""
        return [seen.path for seen in self.seen if seen.method == method]

    def close(self) -> None:
        """Stop and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    """A running server that knows nothing yet."""
    running = LoopbackServer()
    yield running
    running.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and none of the machine's own settings."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "MODELSCOPE_ENDPOINT", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache"
    monkeypatch.setenv("INFERPLANE_CACHE", str(folder))
    return folder


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """`make_wheel(name, version, {member: bytes})`: a wheel as a packager makes it; entries may be ZipInfo pairs."""

    def make(
        name: str, version: str, members: dict[str, bytes], *, infos: list[tuple[Any, bytes]] | None = None
    ) -> Path:
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        stem = name.replace("-", "_")
        path = folder / f"{stem}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(f"{stem}/__init__.py", "raise SystemExit('imported')\n")
            for member, content in members.items():
                wheel.writestr(member, content)
            for info, content in infos or []:
                wheel.writestr(info, content)
            wheel.writestr(f"{stem}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
        return path

    return make


@pytest.fixture
def package_index(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoopbackServer]:
    """`package_index([files], json=True)`: serves them at /simple as the one index of pip's configuration."""

    def start(files: list[Path], *, as_json: bool = True, hashes: dict[str, str] | None = None) -> LoopbackServer:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        server.handle = lambda seen: answer_index(seen, files, as_json, hashes or {})
        return server

    return start


@pytest.fixture
def tls_index(tmp_path: Path) -> Iterator[Callable[[list[Path]], str]]:
    """`tls_index([files]) -> url`: an index whose certificate nobody vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    running = LoopbackServer(context)

    def start(files: list[Path]) -> str:
        running.handle = lambda seen: answer_index(seen, files, as_json=True, hashes={})
        return running.url

    yield start
    running.close()


def answer_index(seen: Seen, files: list[Path], as_json: bool, hashes: dict[str, str]) -> Answer:
    """One answer of a simple index (PEP 503 and 691)."""
    if seen.path.startswith("/files/"):
        wanted = [file for file in files if file.name == seen.path.removeprefix("/files/")]
        return Answer(200, wanted[0].read_bytes()) if wanted else Answer(404)
    project = seen.path.removeprefix("/simple/").strip("/")
    listed = [file for file in files if file.name.split("-")[0].replace("_", "-").lower() == project]
    if not listed:
        return Answer(404)
    digests = {file.name: hashes.get(file.name) or hashlib.sha256(file.read_bytes()).hexdigest() for file in listed}
    if as_json:
        entries = [
            {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest}}
            for name, digest in digests.items()
        ]
        page = {"meta": {"api-version": "1.0"}, "name": project, "files": entries}
        return Answer(200, json.dumps(page).encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})
    links = [f'<a href="../../files/{name}#sha256={digest}">{name}</a>' for name, digest in digests.items()]
    html = f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>"
    return Answer(200, html.encode(), {"Content-Type": "text/html"})


class FakeHub:
    """The endpoints of the Hugging Face Hub that its client uses to fetch one model."""

    commit = "a" * 40

    def __init__(self, server: LoopbackServer, files: dict[str, bytes], repo: str = "org/model") -> None:
        self.server = server
        self.files = files
        self.repo = repo
        self.gated = False
        self.token: str | None = None
        """When set, the model is hidden without this token."""
        self.cut_once: dict[str, int] = {}
        """File to the number of bytes after which its first download breaks."""
        server.handle = self._answer

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.server.url

    def downloads(self) -> list[str]:
        """Names of the files whose content was asked for."""
        prefix = f"/{self.repo}/resolve/{self.commit}/"
        return [path.removeprefix(prefix) for path in self.server.paths() if path.startswith(prefix)]

    def _answer(self, seen: Seen) -> Answer:
        allowed = self.token is None or seen.headers.get("authorization") == f"Bearer {self.token}"
        owned = seen.path.startswith((f"/api/models/{self.repo}/", f"/{self.repo}/resolve/"))
        if not owned or not allowed:
            return Answer(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository Not Found"})
        if seen.path.startswith(f"/api/models/{self.repo}/revision/"):
            if seen.path.rpartition("/")[2] not in {"main", "v1", self.commit}:
                return Answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            info = {"id": self.repo, "sha": self.commit, "siblings": [{"rfilename": name} for name in self.files]}
            return Answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        if self.gated:
            return Answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask for access"})
        if seen.path.startswith(f"/api/models/{self.repo}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in self.files.items()
            ]
            return Answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        name = seen.path.split("/", 5)[-1] if seen.path.count("/") >= 5 else ""
        if name not in self.files:
            return Answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        body = self.files[name]
        headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": self.commit}
        cut = self.cut_once.pop(name, None) if seen.method == "GET" else None
        return Answer(200, body, headers, cut)


@pytest.fixture
def fake_hub(server: LoopbackServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeHub]:
    """`fake_hub({file: bytes})`: a hub with one model, which HF_ENDPOINT points to."""

    def start(files: dict[str, bytes], repo: str = "org/model") -> FakeHub:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        return FakeHub(server, files, repo)

    return start
