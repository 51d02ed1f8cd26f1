"""The scaffold, unedited: it is a clean distribution, passes the kit, and serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inferplane.cli.main import main
from inferplane.cli.plugins_new import api_range, make_names, render
from inferplane.errors import InvalidValue

NAME = "acme_two"
Install = Callable[[Path, Path], None]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command wrote."""
    folder = tmp_path_factory.mktemp("new") / "acme"
    assert main(["plugins", "new", NAME, "--path", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def environment(project: Path, install_wheel: Install, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that has the scaffold's wheel installed."""
    site = tmp_path_factory.mktemp("site")
    install_wheel(project, site)
    return {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


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


def test_the_kit_is_green(project: Path, environment: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--inferplane-report", str(report)]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    result = json.loads(report.read_text())
    assert (result["platform"], result["distribution"]) == (NAME, "inferplane-acme-two")
    assert (result["level_reached"], result["failed"], result["skipped"]) == ("core", 0, 0)
    assert {"model/tokens", f"ops/{NAME}.ops-silu_mul@1-float32"} <= {case["id"] for case in result["cases"]}


def test_it_serves(environment: dict[str, str], tiny_llama_dir: Path, tmp_path: Path) -> None:
    with serving(environment, str(tiny_llama_dir), tmp_path) as url:
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        info = json.load(urllib.request.urlopen(f"{url}/server_info", timeout=60))
    assert answer["usage"]["completion_tokens"] == 3
    assert f'"{NAME}.ops"' in json.dumps(info)


@contextmanager
def serving(environment: dict[str, str], model: str, folder: Path) -> Iterator[str]:
    """The address of `inferplane serve --platform NAME`, ended afterwards."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--platform", NAME, "--dtype", "float32", "--max-model-len", "64", "--served-model-name", "tiny"]
    command = [sys.executable, "-m", "inferplane", "serve", model, "--port", str(port), *flags]
    log = folder / "serve.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert server.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


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
