"""The ModelScope source, against a fake of its HTTP API on loopback."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.config.schema import ModelConfig
from inferplane.errors import InferplaneError
from inferplane.sources.protocol import no_progress
from inferplane.sources.resolve import resolve_source

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 800,
    "pytorch_model.bin": b"never",
    "README.md": b"never",
}
WANTED = {"config.json", "tokenizer.json", "model.safetensors"}


class FakeModelScope:
    """Lists and serves the files of org/model; revisions are master and v1."""

    def __init__(self, server: Any, answer_type: type, files: dict[str, bytes]) -> None:
        self.server = server
        self.answer = answer_type
        self.files = dict(files)
        self.lies: dict[str, bytes] = {}
        """Content that is sent instead of the one that is listed."""
        self.cut_once: dict[str, int] = {}
        self.token: str | None = None
        server.handle = self._answer

    def downloads(self) -> list[str]:
        """Names of the files whose content was asked for."""
        return [seen.query["FilePath"] for seen in self.server.seen if seen.path.endswith("/repo")]

    def _answer(self, seen: Any) -> Any:
        if self.token is not None and seen.headers.get("authorization") != f"Bearer {self.token}":
            return self.answer(401)
        if seen.query.get("Revision") not in {"master", "v1"} or not seen.path.startswith("/api/v1/models/org/model/"):
            return self.answer(404, json.dumps({"Code": 10010205001, "Message": "not found"}).encode())
        if seen.path.endswith("/repo/files"):
            listed: list[dict[str, Any]] = [{"Path": "sub", "Name": "sub", "Type": "tree", "Size": 0}]
            for name, body in self.files.items():
                sha256 = hashlib.sha256(body).hexdigest()
                listed.append({"Path": name, "Name": name, "Type": "blob", "Size": len(body), "Sha256": sha256})
            page = {"Code": 200, "Success": True, "Data": {"Files": listed}}
            return self.answer(200, json.dumps(page).encode(), {"Content-Type": "application/json"})
        name = seen.query["FilePath"]
        return self.answer(200, self.lies.get(name, self.files[name]), {}, self.cut_once.pop(name, None))


@pytest.fixture
def modelscope(server: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeModelScope:
    answer_type = type(server.handle(None))
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
    return FakeModelScope(server, answer_type, FILES)


def fetch(ref: str = "org/model", **values: Any) -> Path:
    return resolve_source(
        ModelConfig.model_validate({"model": ref, "use_modelscope": True, **values}), no_progress
    ).path


def failure(ref: str = "org/model", **values: Any) -> InferplaneError:
    with pytest.raises(InferplaneError) as caught:
        fetch(ref, **values)
    assert caught.value.remedy
    return caught.value


def visible(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if not file.name.startswith(".")}


def test_fetches_what_is_needed_once(modelscope: FakeModelScope, cache: Path) -> None:
    path = fetch()

    assert visible(path) == WANTED
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert path.is_relative_to(cache)
    assert sorted(modelscope.downloads()) == sorted(WANTED)
    assert fetch() == path
    assert len(modelscope.downloads()) == len(WANTED)


def test_a_moved_branch_updates_only_what_changed(modelscope: FakeModelScope) -> None:
    fetch()
    modelscope.files["config.json"] = b'{"model_type": "qwen3"}'
    modelscope.server.seen.clear()

    assert (fetch() / "config.json").read_bytes() == b'{"model_type": "qwen3"}'
    assert modelscope.downloads() == ["config.json"]


def test_revision_and_download_dir(modelscope: FakeModelScope, tmp_path: Path) -> None:
    path = fetch(revision="v1", download_dir=str(tmp_path / "elsewhere"))

    assert path.is_relative_to(tmp_path / "elsewhere")
    assert {seen.query["Revision"] for seen in modelscope.server.seen} == {"v1"}


def test_one_gguf_file(modelscope: FakeModelScope) -> None:
    modelscope.files = {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"}

    assert fetch("org/model:b.gguf").read_bytes() == b"GGUF b"
    assert modelscope.downloads() == ["b.gguf"]
    assert failure("org/model:c.gguf").code == "source.file_not_found"
    assert failure().code == "source.ambiguous"


def test_token(modelscope: FakeModelScope, monkeypatch: pytest.MonkeyPatch) -> None:
    modelscope.token = "secret"

    error = failure()
    assert error.code == "source.unauthorized"
    assert "MODELSCOPE_API_TOKEN" in error.remedy
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
    assert visible(fetch()) == WANTED


@pytest.mark.parametrize("values", [{"ref": "org/other"}, {"revision": "v9"}])
def test_missing_model_or_revision(modelscope: FakeModelScope, values: dict[str, str]) -> None:
    assert failure(**values).code == "source.not_found"


def test_pickle_only(modelscope: FakeModelScope) -> None:
    del modelscope.files["model.safetensors"]

    assert failure().code == "source.pickle_only"
    assert modelscope.downloads() == []


@pytest.mark.parametrize(
    ("lie", "code"), [(b"short", "source.size_mismatch"), (b"\0" * 204800, "source.hash_mismatch")]
)
def test_size_and_hash_are_checked(modelscope: FakeModelScope, cache: Path, lie: bytes, code: str) -> None:
    modelscope.lies["model.safetensors"] = lie

    assert failure().code == code
    assert not [file for file in cache.rglob("*") if file.name.startswith("model.safetensors")]


def test_resumes(modelscope: FakeModelScope) -> None:
    modelscope.cut_once["model.safetensors"] = 70_000

    assert (fetch() / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ranges = [seen.headers.get("range") for seen in modelscope.server.seen if "model.safetensors" in str(seen.query)]
    assert ranges == [None, "bytes=70000-"]


def test_a_path_out_of_the_folder_is_refused(modelscope: FakeModelScope, cache: Path) -> None:
    modelscope.files["../../evil.json"] = b"{}"

    assert failure().code == "source.bad_path"
    assert not list(cache.rglob("evil.json"))


def test_offline(modelscope: FakeModelScope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert failure().code == "source.offline"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    path = fetch()
    modelscope.server.seen.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert fetch() == path
    assert modelscope.server.seen == []
    (path / "model.safetensors").write_bytes(b"damaged")
    assert failure().code == "source.offline"


def test_no_network_uses_the_cache_with_a_warning(
    modelscope: FakeModelScope, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = fetch()
    modelscope.server.close()
    monkeypatch.setattr(modelscope.server, "close", lambda: None)

    assert fetch() == path
    assert "using what the cache has of org/model" in caplog.text
    assert failure("org/model", revision="v1").code == "source.no_network"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"Code": 200}', b'{"Code": 500, "Message": "tired"}'])
def test_strange_answers(modelscope: FakeModelScope, body: bytes) -> None:
    modelscope.server.handle = lambda seen: modelscope.answer(200, body)

    assert failure().code == "source.http"
