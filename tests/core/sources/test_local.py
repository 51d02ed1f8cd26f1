"""A local path is used as it is, and nothing on the way touches the network."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.config.schema import ModelConfig
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.sources.aliases import ALIASES
from inferplane.sources.local import looks_like_path
from inferplane.sources.pypi import parse_ref
from inferplane.sources.resolve import resolve_source, resolve_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_socket", "cache")
@pytest.mark.parametrize("use_modelscope", [False, True])
def test_folder_opens_no_socket(tmp_path: Path, use_modelscope: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = ModelConfig(model=str(folder), tokenizer=str(folder), use_modelscope=use_modelscope, revision="v1")

    assert resolve_source(config)[:3] == (folder, f"local {folder}", "local")
    assert resolve_tokenizer(config) == folder


@pytest.mark.usefixtures("no_socket", "cache")
def test_file_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "m.gguf"
    file.write_bytes(b"GGUF")

    # The reference has the form of a hub id; what exists here comes first.
    assert resolve_source(ModelConfig(model="models/m.gguf")).path == file


@pytest.mark.usefixtures("no_socket", "cache")
def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()

    assert resolve_source(ModelConfig(model="~/m")).path == tmp_path / "m"


@pytest.mark.usefixtures("no_socket", "cache")
@pytest.mark.parametrize("ref", ["/no/such/model", "./org/model", "../model", "~/no-such-model"])
def test_missing_path_is_never_asked_for_on_the_network(ref: str) -> None:
    with pytest.raises(InferplaneError) as caught:
        resolve_source(ModelConfig(model=ref))

    assert caught.value.code == "source.no_such_path"
    assert ref in caught.value.message


@pytest.mark.usefixtures("no_socket", "cache")
@pytest.mark.parametrize(
    ("ref", "meant"), [("smolm2", "smollm2"), ("smollm-2", "smollm2"), ("gemma-270m", "gemma3-270m")]
)
def test_misspelt_embedded_name_gets_a_suggestion(ref: str, meant: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        resolve_source(ModelConfig(model=ref))

    assert meant in caught.value.remedy
    assert caught.value.field == "model"


@pytest.mark.usefixtures("no_socket", "cache")
@pytest.mark.parametrize(
    "ref", ["https://huggingface.co/org/model", "two words", "org/model/sub/folder", "", "x" * 5000, "a\0b"]
)
def test_what_nothing_understands(ref: str) -> None:
    with pytest.raises(InvalidValue):
        resolve_source(ModelConfig(model=ref))


@pytest.mark.parametrize("name", ALIASES)
def test_embedded_names_are_pinned(name: str) -> None:
    parsed = parse_ref(ALIASES[name].ref)

    assert parsed.member
    # A folder has no hash of its own: its wheels' hashes hold it.
    assert parsed.sha256 or not parsed.member.endswith(".gguf")
    assert all(version is not None for _, version in parsed.packages)
    assert len(ALIASES[name].wheels) == len(parsed.packages)
    assert all(len(digest) == 64 for digest in ALIASES[name].wheels.values())


def test_hub_ids_do_not_look_like_paths() -> None:
    assert not any(looks_like_path(ref) for ref in ("org/model", "gpt2", "pypi:x", "org/model:f.gguf"))
