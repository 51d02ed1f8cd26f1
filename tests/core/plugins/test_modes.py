"""The modes auto, listed and locked, and the lock file, on distributions laid out as pip would."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from inferplane.cli.main import main
from inferplane.config import PlatformConfig
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.diagnose import diagnose
from inferplane.plugins.discovery import Discovery, discover
from inferplane.plugins.inventory import list_entry_points
from inferplane.plugins.lockfile import (
    added_files,
    edited_files,
    foreign_modules,
    lock_installed,
    locked_now,
    write_lock,
)
from inferplane_api.spec import HostInfo

Write = Callable[..., str]

HEALTHY = """
from inferplane_api.spec import *
PLATFORM = PlatformSpec(name="{name}", load="{module}.platform:P", probe="{module}:probe", tier=5)
def probe(host):
    return ProbeResult(state=ProbeState.PRESENT, devices=(DeviceInfo(name="chip"),))
"""


def record(site: Path, module: str, version: str = "1.2") -> None:
    """Write the RECORD that an installer would, with the lines that it adds by itself."""
    info = f"{module}-{version}.dist-info"
    lines = []
    for file in (f"{module}.py", f"{info}/METADATA", f"{info}/entry_points.txt"):
        content = (site / file).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(content)}")
    (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


def add_own_notes(site: Path, module: str, version: str = "1.2") -> None:
    """What differs between two environments with the same wheel."""
    file = site / f"{module}-{version}.dist-info" / "RECORD"
    extra = [
        "../../../bin/acme,sha256=c2NyaXB0,9",
        f"__pycache__/{module}.cpython-312.pyc,,",
        f"{module}-{version}.dist-info/INSTALLER,sha256=cGlw,4",
    ]
    file.write_text(file.read_text() + "\n".join(extra) + "\n")


@pytest.fixture
def two(write_platform: Write, site: Path) -> Path:
    """acme-npu, installed from a wheel, and beta-npu, without a RECORD."""
    record(site, write_platform("acme-npu", HEALTHY))
    write_platform("beta-npu", HEALTHY)
    return site


@pytest.fixture
def lock(two: Path, tmp_path: Path) -> Path:
    """A lock file with these two only."""
    path = tmp_path / "plugins.lock"
    write_lock(
        lock_installed(each for each in list_entry_points() if each.distribution in ("acme-npu", "beta-npu")), path
    )
    return path


def locked(path: Path, **options: object) -> PlatformConfig:
    return PlatformConfig(plugins_mode="locked", plugins_lock=str(path), **options)


def names(discovery: Discovery) -> set[str]:
    return {entry.distribution for entry in discovery.entries}


def test_locked_runs_exactly_what_is_locked(lock: Path, host: HostInfo, write_platform: Write) -> None:
    module = write_platform("later-npu", "raise RuntimeError('imported')")
    with discover(host, locked(lock), environ={}) as discovery:
        assert names(discovery) == {"inferplane", "acme-npu", "beta-npu"}
        left_out = {item.distribution: item for item in discovery.left_out}
    assert left_out["later-npu"].reason.code == "plugin.not_locked"
    assert (left_out["later-npu"].version, left_out["later-npu"].names) == ("1.2", ("later",))
    assert module == "later_npu"


def test_lists_still_hold_when_locked(lock: Path, host: HostInfo) -> None:
    with discover(host, locked(lock, disable_plugins=("beta-npu",)), environ={}) as discovery:
        assert names(discovery) == {"inferplane", "acme-npu"}
        assert {item.distribution: item.reason.code for item in discovery.left_out}["beta-npu"] == "plugin.disabled"


def test_what_an_installer_adds_changes_no_hash(two: Path) -> None:
    before = locked_now("acme-npu")
    add_own_notes(two, "acme_npu")
    assert locked_now("acme-npu") == before
    assert before.of == "RECORD"


def test_a_changed_version_names_both_and_the_remedy(lock: Path, two: Path, host: HostInfo) -> None:
    old, new = two / "acme_npu-1.2.dist-info", two / "acme_npu-1.3.dist-info"
    hash_before = locked_now("acme-npu").hash
    old.rename(new)
    (new / "METADATA").write_text((new / "METADATA").read_text().replace("Version: 1.2", "Version: 1.3"))
    record(two, "acme_npu", "1.3")
    with pytest.raises(InferplaneError) as caught:
        discover(host, locked(lock), environ={})
    assert caught.value.code == "plugins.locked"
    assert f"acme-npu is locked at 1.2 ({hash_before} of its RECORD) and 1.3 (sha256:" in caught.value.message
    assert "--no-deps acme-npu==1.2;" in caught.value.remedy, "only what differs"
    assert "inferplane plugins lock" in caught.value.remedy


def test_another_build_of_the_same_version_names_both_hashes(lock: Path, two: Path, host: HostInfo) -> None:
    before = locked_now("acme-npu").hash
    with (two / "acme_npu.py").open("a") as file:
        file.write("# rebuilt\n")
    record(two, "acme_npu")
    after = locked_now("acme-npu").hash
    with pytest.raises(InferplaneError, match=r"acme-npu is locked at 1\.2") as caught:
        discover(host, locked(lock), environ={})
    assert before != after
    assert before in caught.value.message
    assert after in caught.value.message


def test_a_file_edited_after_the_installation_is_named(lock: Path, two: Path, host: HostInfo) -> None:
    assert edited_files("acme-npu") == []
    with (two / "acme_npu.py").open("a") as file:
        file.write("# patched by hand\n")
    with pytest.raises(InferplaneError, match=r"acme-npu 1\.2 is not as it was installed: acme_npu\.py"):
        discover(host, locked(lock), environ={})


def make_package(site: Path, module: str) -> Path:
    """Turn the installed module into a package, as its wheel would have brought it."""
    package = site / module
    (package / "data").mkdir(parents=True)
    (site / f"{module}.py").rename(package / "__init__.py")
    (package / "data" / "table.json").write_text("1")
    info = f"{module}-1.2.dist-info"
    lines = []
    for file in (f"{module}/__init__.py", f"{module}/data/table.json", f"{info}/METADATA", f"{info}/entry_points.txt"):
        digest = base64.urlsafe_b64encode(hashlib.sha256((site / file).read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},1")
    (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return package


@pytest.mark.parametrize("file", ["extra.py", "data/more.json", "sub/__init__.py", "__init__.cpython-312-x86.so"])
def test_a_file_added_to_a_package_is_named(file: str, two: Path, host: HostInfo, tmp_path: Path) -> None:
    package = make_package(two, "acme_npu")
    path = tmp_path / "plugins.lock"
    write_lock(lock_installed(each for each in list_entry_points() if each.distribution == "acme-npu"), path)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_text("compiled")
    with discover(host, locked(path), environ={}) as discovery:
        assert "acme-npu" in names(discovery)
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text("")
    # A line without a hash is what an installer writes for compiled files only, and vouches for nothing.
    with (two / "acme_npu-1.2.dist-info" / "RECORD").open("a") as lines:
        lines.write(f"acme_npu/{file},,\n")
    with pytest.raises(InferplaneError, match=rf"acme-npu 1\.2 is not as it was installed: acme_npu/{file} was added"):
        discover(host, locked(path), environ={})


@pytest.mark.parametrize("name", ["acme_npu.py", "acme_npu/__init__.py"])
def test_a_module_of_the_same_name_that_is_found_first_is_named(
    name: str, lock: Path, host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, marker = tmp_path / "early", tmp_path / "imported"
    (early / name).parent.mkdir(parents=True)
    (early / name).write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.syspath_prepend(str(early))
    with pytest.raises(InferplaneError) as caught:
        discover(host, locked(lock), environ={})
    assert caught.value.code == "plugins.locked"
    want = f"an import would not find the modules of acme-npu 1.2: acme_npu is {early / name}"
    assert want in caught.value.message
    assert not marker.exists()


def test_a_package_beside_the_module_is_found_first_and_named(lock: Path, two: Path, host: HostInfo) -> None:
    (two / "acme_npu").mkdir()
    (two / "acme_npu" / "__init__.py").write_text("")
    with pytest.raises(InferplaneError, match=r"modules of acme-npu 1\.2: acme_npu is .*__init__"):
        discover(host, locked(lock), environ={})


def test_a_module_of_the_same_name_changes_the_hash_of_files(
    lock: Path, host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "beta_npu.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "early"))
    with pytest.raises(InferplaneError, match=r"beta-npu is locked at 1\.2 \(sha256:\w+ of its files\) and 1\.2"):
        discover(host, locked(lock), environ={})


def test_a_shared_folder_without_code_of_its_own_is_walked_through(
    write_distribution: Write, site: Path, host: HostInfo, tmp_path: Path
) -> None:
    """`vendors.acme.descriptor`, where other distributions put packages into `vendors` too."""
    write_distribution("acme-npu", "", {"models": {"m": "MODEL"}})
    (site / "acme_npu.py").unlink()
    info = site / "acme_npu-1.2.dist-info"
    (info / "entry_points.txt").write_text("[inferplane.models]\nm = vendors.acme.descriptor:MODEL\n")
    package = site / "vendors" / "acme"
    package.mkdir(parents=True)
    (site / "vendors" / "others.py").write_text("raise RuntimeError")
    lines = []
    for file in ("__init__.py", "descriptor.py"):
        (package / file).write_text("raise RuntimeError('imported')")
        digest = base64.urlsafe_b64encode(hashlib.sha256((package / file).read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"vendors/acme/{file},sha256={digest},1")
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    assert (added_files("acme-npu"), foreign_modules("acme-npu")) == ([], [])
    (package / "descriptor").mkdir()
    (package / "descriptor" / "__init__.py").write_text("")
    assert added_files("acme-npu") == ["vendors/acme/descriptor/__init__.py"]
    (foreign,) = foreign_modules("acme-npu")
    assert foreign == f"vendors.acme.descriptor is {package / 'descriptor' / '__init__.py'}"


def test_without_a_record_the_files_are_hashed(lock: Path, two: Path, host: HostInfo) -> None:
    assert locked_now("beta-npu").of == "files"
    with (two / "beta_npu.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(InferplaneError, match=r"beta-npu is locked at 1\.2 \(sha256:\w+ of its files\) and 1\.2"):
        discover(host, locked(lock), environ={})


def test_an_editable_install_is_hashed_by_its_files(
    write_distribution: Write, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "acme_edit" / "data").mkdir(parents=True)
    (source / "acme_edit" / "__init__.py").write_text("raise RuntimeError('imported')")
    (source / "acme_edit" / "data" / "table.json").write_text("1")
    monkeypatch.syspath_prepend(str(source))
    write_distribution("acme-edit", "", {"models": {"m": "MODEL"}})
    (site / "acme_edit.py").unlink()
    info = site / "acme_edit-1.2.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}}))
    (info / "RECORD").write_text("acme_edit.pth,sha256=eA,1\n")
    before = locked_now("acme-edit")
    assert before.of == "files"
    (source / "acme_edit" / "__pycache__").mkdir()
    (source / "acme_edit" / "__pycache__" / "x.pyc").write_text("compiled")
    assert locked_now("acme-edit") == before
    (source / "acme_edit" / "data" / "table.json").write_text("2")
    assert locked_now("acme-edit").hash != before.hash


def test_a_missing_distribution_names_it(lock: Path, two: Path, host: HostInfo) -> None:
    for file in (two / "acme_npu-1.2.dist-info").iterdir():
        file.unlink()
    (two / "acme_npu-1.2.dist-info").rmdir()
    with pytest.raises(InferplaneError, match=r"acme-npu is locked at 1\.2 and not installed"):
        discover(host, locked(lock), environ={})


@pytest.mark.parametrize(("content", "text"), [(None, "cannot be read: No such file"), ("{}x", "is not a lock file")])
def test_a_lock_file_that_cannot_be_read(host: HostInfo, tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "plugins.lock"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InferplaneError, match=text) as caught:
        discover(host, locked(path), environ={})
    assert "inferplane plugins lock" in caught.value.remedy


def test_listed_uses_what_is_named_and_nothing_else(two: Path, host: HostInfo, write_distribution: Write) -> None:
    write_distribution("acme-models", "raise RuntimeError", {"models": {"acme_lm": "M"}})
    listed = PlatformConfig(plugins_mode="listed", plugins=("platforms:acme",))
    with discover(host, listed, environ={}) as discovery:
        assert names(discovery) == {"inferplane", "acme-npu"}
        reasons = {item.distribution: str(item.reason) for item in discovery.left_out}
    assert reasons["acme-models"] == "plugin.not_listed (not named by plugins)"
    auto = PlatformConfig(plugins=("platforms:acme",))
    with discover(host, auto, environ={}) as discovery:
        assert "acme-models" in names(discovery), "in mode auto, a name for one kind leaves the others alone"


def test_a_list_that_names_a_part_of_a_package_tells_what_it_lacks(host: HostInfo, write_distribution: Write) -> None:
    points = {"platforms": {"acme": "PLATFORM"}, "attention": {"acme.fast": "FAST"}}
    write_distribution("acme-npu", "raise RuntimeError", points)

    def told(**options: object) -> list[str]:
        with discover(host, PlatformConfig(**options), environ={}) as discovery:
            return [f"{each.message}; {each.remedy}" for each in discovery.problems if each.code == "plugin.not_listed"]

    assert told(plugins=("acme",)) == [
        "acme-npu 1.2 is used in part, without acme.fast: not named by plugins; add acme-npu to --plugins or "
        "INFERPLANE_PLUGINS"
    ]
    for names in (("acme-npu",), ("platforms:acme",), ("inferplane",)):
        assert not told(plugins=names), "the whole package, a kind on purpose, or nothing of it"


def test_what_to_take_off_the_deny_list_is_what_stands_there(host: HostInfo, write_distribution: Write) -> None:
    points = {"platforms": {"acme": "PLATFORM"}, "attention": {"acme.fast": "FAST"}}
    write_distribution("acme-npu", "raise RuntimeError", points)
    with discover(host, PlatformConfig(disable_plugins=("attention:acme.fast",)), environ={}) as discovery:
        item = next(item for item in discovery.left_out if item.distribution == "acme-npu")
        assert (item.names, item.remedy) == (("acme.fast",), "take attention:acme.fast off --disable-plugins")
        told = [finding.message for finding in diagnose(discovery, None)]
    assert any(text.startswith("acme-npu 1.2 is left out in part (acme.fast)") for text in told)


def test_listed_takes_the_variable_and_refuses_no_list(two: Path, host: HostInfo) -> None:
    listed = PlatformConfig(plugins_mode="listed")
    with discover(host, listed, environ={"INFERPLANE_PLUGINS": "beta-npu"}) as discovery:
        assert names(discovery) == {"inferplane", "beta-npu"}
    with pytest.raises(InvalidValue, match=r"plugins_mode.*no plugin is listed") as caught:
        discover(host, listed, environ={})
    assert "INFERPLANE_PLUGINS" in caught.value.remedy


def test_the_command_writes_what_a_locked_start_accepts(
    two: Path, host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "lock"]) == 0
    text = capsys.readouterr().out
    plugins = json.loads((tmp_path / "inferplane-plugins.lock").read_text())["plugins"]
    by_name = {plugin["name"]: plugin for plugin in plugins}
    assert "inferplane" not in by_name
    assert (by_name["acme-npu"]["version"], by_name["acme-npu"]["of"]) == ("1.2", "RECORD")
    assert by_name["acme-npu"]["hash"] in text
    with discover(host, PlatformConfig(plugins_mode="locked"), environ={}) as discovery:
        assert {"acme-npu", "beta-npu"} <= names(discovery)


def test_the_command_says_when_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "lock", "--output", str(tmp_path / "no" / "file")]) == 1
    assert "--output" in capsys.readouterr().err
