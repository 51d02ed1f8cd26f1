"""The scaffold is a clean distribution, and says no to names and folders that it cannot use.

tests/packaging installs it from wheels, runs the kit on it and serves with it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplane.cli.main import main
from inferplane.cli.plugins_new import api_range, make_names, render
from inferplane.errors import InvalidValue

NAME = "acme_two"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command wrote."""
    folder = tmp_path_factory.mktemp("new") / "acme"
    assert main(["plugins", "new", NAME, "--path", str(folder)]) == 0
    return folder


def test_it_writes_these_files(project: Path) -> None:
    written = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    package = f"inferplane_{NAME}"
    assert written == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "pyproject.toml",
        f"{package}/__init__.py",
        f"{package}/descriptor.py",
        f"{package}/ops.py",
        f"{package}/platform.py",
        f"{package}/probe.py",
        "tests/test_conformance.py",
        "tests/test_ops.py",
    }


def test_what_it_writes_is_clean(project: Path) -> None:
    rules = ["--isolated", "--line-length", "120", "--target-version", "py311"]
    for command in (["check", "--select", "E,F,I,UP,B,SIM,RUF,TID,ANN,C90,PT", *rules], ["format", "--check", *rules]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=project, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_imports_the_contract_and_never_the_core(project: Path) -> None:
    for path in project.rglob("*.py"):
        assert "from inferplane." not in path.read_text()
        assert "import inferplane\n" not in path.read_text()


def test_it_is_not_chosen_by_accident() -> None:
    files = render(make_names("acme"))
    assert "tier=0," in files["inferplane_acme/descriptor.py"]


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("Acme-Chip", "identifier", "'acme_chip'"),
        ("2fast", "identifier", "'fast'"),
        ("class", "identifier", "'acme'"),
        ("", "identifier", "'acme'"),
        ("reference", "the package inferplane", "choose another"),
        ("hf", "the package inferplane", "choose another"),
        ("cpu", "the package inferplane-cpu", "choose another"),
        ("api", "the package inferplane-api", "choose another"),
    ],
)
def test_names_that_cannot_be_used(name: str, problem: str, remedy: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        make_names(name)
    assert refused.value.field == "name"
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy


def test_an_official_name_is_refused_before_its_package_is_installed() -> None:
    from inferplane.host.hardware import load_hardware_table

    known = load_hardware_table().hardware[0]
    with pytest.raises(InvalidValue, match=known.package):
        make_names(known.platform)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main(["plugins", "new", "acme", "--path", str(tmp_path)]) == 1
    assert "--path" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("version", "expected"), [("0.1.0", ">=0.1,<0.2"), ("0.12.3", ">=0.12,<0.13"), ("2.3.1", ">=2.3,<3")]
)
def test_the_range_of_the_contract(version: str, expected: str) -> None:
    assert api_range(version) == expected


@pytest.fixture
def in_container(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, str]], list[tuple[int, int]]]:
    """in_container(files below /) is what the scaffold's platform makes of them."""
    spec = importlib.util.spec_from_file_location("scaffold_platform", project / f"inferplane_{NAME}" / "platform.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def below(*parts: str) -> Path:
        path = Path(*parts)
        return tmp_path / path.relative_to("/") if path.is_absolute() else path

    def run(files: dict[str, str]) -> list[tuple[int, int]]:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.setattr(module, "Path", below)
        memory = module.AcmeTwoMemory()
        limits: list[tuple[int, int]] = module.container_limits()
        least = min((limit - used for limit, used in limits), default=None)
        assert 0 <= memory.free() <= memory.total()
        if least is not None:
            assert memory.free() == max(0, least)
            assert memory.total() == min(limit for limit, _ in limits)
        return limits

    return run


def test_the_memory_of_a_container_of_version_2(in_container: Any) -> None:
    """Its own group has no limit, the pod's has; file pages of the pod can be dropped."""
    group = "sys/fs/cgroup/pod"
    files = {
        "proc/self/cgroup": "0::/pod/app\n",
        f"{group}/app/memory.max": "max\n",
        f"{group}/app/memory.current": "900\n",
        f"{group}/app/memory.stat": "anon 900\ninactive_file 0\n",
        f"{group}/memory.max": "5000\n",
        f"{group}/memory.current": "3000\n",
        f"{group}/memory.stat": "anon 1000\ninactive_file 1200\n",
    }
    assert in_container(files) == [(5000, 1800)]


def test_the_memory_of_a_container_of_version_1(in_container: Any) -> None:
    """The group's path is the host's and does not exist here; the container's own is mounted at the root."""
    files = {
        "proc/self/cgroup": "11:cpu:/docker/abc\n12:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "3900\n",
        "sys/fs/cgroup/memory/memory.stat": "cache 700\ntotal_inactive_file 500\n",
    }
    assert set(in_container(files)) == {(4000, 3400)}


def test_more_used_than_allowed_is_nothing_free(in_container: Any) -> None:
    group = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "0::/\n",
        f"{group}/memory.max": "100\n",
        f"{group}/memory.current": "200\n",
        f"{group}/memory.stat": "inactive_file 0\n",
    }
    assert in_container(files) == [(100, 200)]


def test_without_control_groups_the_host_decides(in_container: Any) -> None:
    assert in_container({}) == []
