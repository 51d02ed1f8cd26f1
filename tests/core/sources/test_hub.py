"""The hub source, against a fake hub on loopback, through the real client library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.config.schema import ModelConfig
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.sources.hub import parse_ref, wanted_patterns
from inferplane.sources.resolve import resolve_source, resolve_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": b"1" * 5000,
    "model-00002-of-00002.safetensors": b"2" * 3000,
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "pytorch_model.bin": b"never" * 100,
    "original/consolidated.safetensors": b"never",
    "consolidated.00.safetensors": b"never",
    "onnx/model.safetensors": b"never",
    "modeling_evil.py": b"never",
    "README.md": b"never",
}
WANTED = {
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
}


def model(name: str, tmp_path: Path, **values: Any) -> ModelConfig:
    return ModelConfig.model_validate({"model": name, "download_dir": str(tmp_path / "hub"), **values})


def ignore(what: str, done: int, total: int | None) -> None:
    pass


def test_fetches_config_tokenizer_and_safetensors_only(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub(FILES)
    told: list[tuple[str, int, int | None]] = []

    found = resolve_source(model("org/model", tmp_path), lambda *progress: told.append(progress))

    assert {file.name for file in found.path.iterdir()} == WANTED
    assert (found.path / "model-00001-of-00002.safetensors").read_bytes() == b"1" * 5000
    assert set(hub.downloads()) == WANTED
    assert found.kind == "hub"
    assert found.provenance == f"hub org/model@{hub.commit}"
    assert max(done for _, done, _ in told) == sum(len(FILES[name]) for name in WANTED)


def test_second_start_downloads_nothing(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub(FILES)
    first = resolve_source(model("org/model", tmp_path), ignore)
    hub.server.seen.clear()

    assert resolve_source(model("org/model", tmp_path), ignore) == first
    assert hub.downloads() == []


@pytest.mark.parametrize("revision", ["v1", "a" * 40])
def test_revision(fake_hub: Callable[..., Any], tmp_path: Path, revision: str) -> None:
    hub = fake_hub(FILES)

    found = resolve_source(model("org/model", tmp_path, revision=revision), ignore)

    assert found.path.name == hub.commit
    assert not any("/revision/main" in path for path in hub.server.paths())


def test_token_is_sent(fake_hub: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(FILES)
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    assert (resolve_source(model("org/model", tmp_path), ignore).path / "config.json").exists()


@pytest.mark.parametrize("ref", ["org/model:m-Q4.gguf", "org/model/m-Q4.gguf"])
def test_only_the_named_gguf_file(fake_hub: Callable[..., Any], tmp_path: Path, ref: str) -> None:
    hub = fake_hub({"m-Q4.gguf": b"GGUF4", "m-Q8.gguf": b"GGUF8", "config.json": b"{}"})

    found = resolve_source(model(ref, tmp_path), ignore)

    assert found.path.read_bytes() == b"GGUF4"
    assert found.path.name == "m-Q4.gguf"
    assert hub.downloads() == ["m-Q4.gguf"]


def test_all_parts_of_a_split_gguf_file(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    parts = {f"m-0000{index}-of-00002.gguf": b"GGUF%d" % index for index in (1, 2)}
    hub = fake_hub(parts | {"other.gguf": b"GGUF"})

    found = resolve_source(model("org/model:m-00001-of-00002.gguf", tmp_path), ignore)

    assert found.path.name == "m-00001-of-00002.gguf"
    assert sorted(hub.downloads()) == sorted(parts)


def test_brackets_in_a_file_name_are_no_pattern() -> None:
    assert wanted_patterns("m[1].gguf", tokenizer_only=False) == ("m[[]1].gguf",)


def test_tokenizer_alone(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub(FILES)

    path = resolve_tokenizer(model("elsewhere/x", tmp_path, tokenizer="org/model"), ignore)

    assert path is not None
    assert (path / "tokenizer.json").exists()
    assert not any(name.endswith(".safetensors") for name in hub.downloads())


def test_without_weights(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub(FILES)

    path = resolve_source(model("org/model", tmp_path), ignore, weights=False).path

    assert (path / "config.json").exists()
    assert not any(name.endswith(".safetensors") for name in hub.downloads())


def failure(config: ModelConfig) -> InferplaneError:
    with pytest.raises(InferplaneError) as caught:
        resolve_source(config, ignore)
    assert caught.value.remedy
    return caught.value


def test_gated(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub(FILES)
    hub.gated = True

    error = failure(model("org/model", tmp_path))

    assert error.code == "source.gated"
    assert f"{hub.url}/org/model" in error.remedy
    assert "HF_TOKEN" in error.remedy


def test_missing_repository(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    fake_hub(FILES)

    error = failure(model("org/modle", tmp_path))

    assert error.code == "source.not_found"
    assert "org/modle" in error.message


def test_missing_revision(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    fake_hub(FILES)

    error = failure(model("org/model", tmp_path, revision="v9"))

    assert error.code == "source.revision_not_found"
    assert "v9" in error.message


def test_missing_gguf_file_lists_those_there_are(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    fake_hub({"m-Q4.gguf": b"GGUF", "m-Q8.gguf": b"GGUF"})

    error = failure(model("org/model:m-Q5.gguf", tmp_path))

    assert error.code == "source.file_not_found"
    assert "m-Q4.gguf, m-Q8.gguf" in error.remedy


def test_gguf_repository_without_a_file_name(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    fake_hub({"m-Q4.gguf": b"GGUF", "m-Q8.gguf": b"GGUF"})

    error = failure(model("org/model", tmp_path))

    assert error.code == "source.ambiguous"
    assert "org/model:FILE.gguf" in error.remedy
    assert "m-Q8.gguf" in error.remedy


def test_pickle_only(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub({"config.json": b"{}", "pytorch_model.bin": b"pickle"})

    error = failure(model("org/model", tmp_path))

    assert error.code == "source.pickle_only"
    assert "pytorch_model.bin" not in hub.downloads()


def test_no_weights_at_all(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    fake_hub({"config.json": b"{}", "README.md": b""})

    assert failure(model("org/model", tmp_path)).code == "source.no_model"


def test_offline_uses_the_cached_snapshot(
    fake_hub: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = fake_hub(FILES)
    online = resolve_source(model("org/model", tmp_path), ignore)
    hub.server.seen.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert resolve_source(model("org/model", tmp_path), ignore) == online
    assert hub.server.seen == []


def test_offline_without_cache(fake_hub: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(FILES)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    error = failure(model("org/model", tmp_path))

    assert error.code == "source.offline"
    assert "HF_HUB_OFFLINE" in error.message
    assert hub.server.seen == []


def test_no_network(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    url = server.url
    server.close()
    server.close = lambda: None
    monkeypatch.setenv("HF_ENDPOINT", url)

    error = failure(model("org/model", tmp_path))

    assert error.code == "source.no_network"
    assert url in error.message


def test_server_error(fake_hub: Callable[..., Any], tmp_path: Path, server: Any) -> None:
    fake_hub(FILES)
    ordinary = server.handle
    server.handle = lambda seen: ordinary(seen)._replace(status=500)

    assert failure(model("org/model", tmp_path)).code == "source.http"


def test_resumes_an_interrupted_download(
    fake_hub: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the client has not written out yet is lost, so the blocks must be smaller than the file.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 65536)
    big = bytes(range(256)) * 8192
    hub = fake_hub({"config.json": b"{}", "model.safetensors": big})
    hub.cut_once = {"model.safetensors": len(big) // 2}

    found = resolve_source(model("org/model", tmp_path), ignore)

    assert (found.path / "model.safetensors").read_bytes() == big
    gets = [seen for seen in hub.server.seen if seen.method == "GET" and seen.path.endswith("model.safetensors")]
    assert [seen.headers.get("range") for seen in gets] == [None, f"bytes={len(big) // 2}-"]


def test_variables_of_the_client_hold_in_a_fresh_process(fake_hub: Callable[..., Any], tmp_path: Path) -> None:
    hub = fake_hub(FILES)
    script = (
        "import json, sys\n"
        "from inferplane.config.schema import ModelConfig\n"
        "from inferplane.sources.resolve import resolve_source\n"
        "found = resolve_source(ModelConfig(model='org/model'))\n"
        "print(json.dumps([str(found.path), 'torch' in sys.modules]))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
    environment.pop("HF_HUB_CACHE", None)

    outputs = []
    for offline in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**environment, "HF_HUB_OFFLINE": offline},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(json.loads(done.stdout))

    assert outputs[0] == outputs[1]
    path, has_torch = outputs[0]
    assert path.startswith(str(tmp_path / "home" / "hub"))
    assert not has_torch


@pytest.mark.parametrize(
    "ref", ["a b", "org/model/sub", "org/model:x.bin", "org/model:", "org/model:../x.gguf", "../m"]
)
def test_what_is_no_hub_id(ref: str) -> None:
    with pytest.raises(InvalidValue):
        parse_ref(ref)


def test_names_without_an_owner_are_hub_ids() -> None:
    assert parse_ref("gpt2") == ("gpt2", None)
