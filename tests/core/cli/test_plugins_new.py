"""The scaffold is a clean distribution, and says no to names and folders that it cannot use.

tests/packaging installs it from wheels, runs the kit on it and serves with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    rules = ["--isolated", "--line-length", "120", "--target-version", "py310"]
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
