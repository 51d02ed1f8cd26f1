"""The built wheels, installed (not editable) into clean environments: they serve, and say what is wrong when not.

A full environment with torch takes gigabytes and minutes, so each case gets a thin one: `python -m venv` with nothing
in it but our wheels, and one `.pth` line that adds a folder of links to the third-party packages of the running
environment. The links leave out every distribution of this repository (its metadata too, so that no entry point of the
editable install is seen), and `.pth` files inside a folder that a `.pth` file adds are not read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = [REPOSITORY / name / "pyproject.toml" for name in ("platform_api", "core", "backends_cpu")]
MANIFESTS += sorted(REPOSITORY.glob("plugins/*/pyproject.toml"))
START_LIMIT = 120.0

pytestmark = pytest.mark.timeout(300)


def ours(name: str) -> bool:
    """True for a file of site-packages that belongs to a distribution of this repository."""
    return re.match(r"(_editable_impl_)?inferplane", name, re.IGNORECASE) is not None


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Distribution name to built wheel, for every member."""
    folder = tmp_path_factory.mktemp("wheels")
    for manifest in MANIFESTS:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
        # One instruction set of the native kernels: each takes its time to compile, and the wheel is built alike.
        quick = {**os.environ, "SKBUILD_CMAKE_DEFINE": "INFERPLANE_CPU_ISAS=portable"}
        subprocess.run(command, cwd=manifest.parent, check=True, capture_output=True, timeout=240, env=quick)
    built = {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert len(built) == len(MANIFESTS)
    return built


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to everything in site-packages that is not ours."""
    folder = tmp_path_factory.mktemp("third-party")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not ours(entry.name) and entry.suffix != ".pth" and entry.name != "__pycache__":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, third_party: Path) -> Callable[..., Path]:
    """`environment(*wheels) -> bin folder` of a new virtual environment with exactly these of our wheels."""

    def make(*chosen: Path) -> Path:
        root = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True, timeout=120)
        python = root / "bin" / "python"
        site = next(root.glob("lib/python*/site-packages"))
        install = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
        options = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
        subprocess.run([*install, *options, *map(str, chosen)], check=True, capture_output=True, timeout=120)
        (site / "third_party.pth").write_text(f"{third_party}\n", encoding="utf-8")
        return root / "bin"

    return make


@pytest.fixture(scope="module")
def complete(environment: Callable[..., Path], wheels: dict[str, Path]) -> Path:
    """The environment a user has: core, contract, CPU backend and checkpoint formats."""
    return environment(*wheels.values())


def clean_variables() -> dict[str, str]:
    dropped = ("PYTHON", "INFERPLANE_", "VIRTUAL_ENV", "COV_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def run(binaries: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed `inferplane` command."""
    command = [str(binaries / "inferplane"), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=clean_variables(), capture_output=True, text=True, timeout=START_LIMIT, check=False
    )


def call(url: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"{}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(binaries: Path, *arguments: str, cwd: Path) -> Iterator[str]:
    """The address of a running `inferplane serve`; stops it and its engine afterwards."""
    port = free_port()
    log = cwd / "serve.log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            [str(binaries / "inferplane"), "serve", *arguments, "--port", str(port)],
            cwd=cwd,
            env=clean_variables(),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            call(url)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"not healthy after {START_LIMIT} s:\n{log.read_text()}")


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str], entry_points: str) -> Path:
    """A wheel as a stranger would publish it."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Requires-Dist: inferplane-api<0.2,>=0.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points,
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in content.items())
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def test_wheels_hold_code_and_nothing_else(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        names = zipfile.ZipFile(wheel).namelist()
        package = name.replace("-", "_")
        assert all(entry.startswith((f"{package}/", f"{package}-")) for entry in names), name
        assert f"{package}/py.typed" in names
        compiled = name == "inferplane-cpu"
        assert re.search(r"-py3-none-linux_\w+\.whl$" if compiled else r"-py3-none-any\.whl$", wheel.name)


def test_the_environment_is_clean(complete: Path, wheels: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import importlib.metadata as m, inferplane, inferplane_api, json\n"
        "found = [d.metadata['Name'] for d in m.distributions() if d.metadata['Name'].startswith('inferplane')]\n"
        "print(json.dumps([sorted(found), inferplane.__file__, inferplane_api.__file__]))"
    )
    answer = subprocess.run(
        [str(complete / "python"), "-c", code],
        cwd=tmp_path,
        env=clean_variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    found, *files = json.loads(answer.stdout)
    assert found == sorted(wheels)
    assert all(Path(file).is_relative_to(complete.parent) for file in files)


def test_doctor_is_content(complete: Path, tmp_path: Path) -> None:
    answer = run(complete, "doctor", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_plugins_are_listed(complete: Path, tmp_path: Path) -> None:
    answer = run(complete, "plugins", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "inferplane-cpu" in answer.stdout
    assert "inferplane-quantization" in answer.stdout
    assert "reference" in answer.stdout


def test_a_request_is_served(complete: Path, tiny_llama_dir: Path, tmp_path: Path) -> None:
    with serving(complete, str(tiny_llama_dir), "--served-model-name", "tiny", cwd=tmp_path) as address:
        assert [model["id"] for model in call(f"{address}/v1/models")["data"]] == ["tiny"]
        body = {"model": "tiny", "prompt": "the cat", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        answer = call(f"{address}/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


def test_without_a_platform_the_package_to_install_is_named(
    environment: Callable[..., Path], wheels: dict[str, Path], tiny_llama_dir: Path, tmp_path: Path
) -> None:
    without = environment(
        *(wheel for name, wheel in wheels.items() if name not in {"inferplane-cpu", "inferplane-scripted"})
    )
    answer = run(without, "serve", str(tiny_llama_dir), "--port", "0", cwd=tmp_path)
    assert answer.returncode != 0
    assert "pip install inferplane-cpu" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert run(without, "doctor", cwd=tmp_path).returncode != 0


@pytest.fixture(scope="module")
def beside_a_broken_one(
    environment: Callable[..., Path], wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """All of ours, and a vendor's plugin whose library is missing."""
    broken = make_wheel(
        tmp_path_factory.mktemp("broken"),
        "acme-npu-inferplane",
        "1.2.3",
        {
            "acme_npu/__init__.py": "",
            "acme_npu/descriptor.py": "raise ImportError('libacme.so.2: cannot open shared object file')\n",
        },
        "[inferplane.platforms]\nacme = acme_npu.descriptor:PLATFORM\n",
    )
    return environment(*wheels.values(), broken)


def test_a_broken_plugin_is_named_by_the_doctor(beside_a_broken_one: Path, tmp_path: Path) -> None:
    answer = run(beside_a_broken_one, "doctor", cwd=tmp_path)
    assert answer.returncode != 0
    assert_named(answer.stdout + answer.stderr)


def test_a_broken_plugin_is_named_when_asked_for(
    beside_a_broken_one: Path, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    answer = run(beside_a_broken_one, "serve", str(tiny_llama_dir), "--platform", "acme", "--port", "0", cwd=tmp_path)
    assert answer.returncode != 0
    assert_named(answer.stderr)
    assert "Traceback" not in answer.stderr


def test_a_broken_plugin_without_its_hardware_is_a_warning(
    beside_a_broken_one: Path, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    with serving(beside_a_broken_one, str(tiny_llama_dir), cwd=tmp_path):
        pass
    assert_named((tmp_path / "serve.log").read_text())


def assert_named(text: str) -> None:
    """Distribution, version, reason and remedy, however the lines are wrapped."""
    flat = " ".join(text.split())
    assert "acme-npu-inferplane" in flat
    assert "1.2.3" in flat
    assert "libacme.so.2: cannot open shared object file" in flat
    assert "pip uninstall acme-npu-inferplane" in flat or "pip install" in flat or "--disable-plugins" in flat


def test_a_scaffold_is_installed_passes_the_kit_and_serves(
    environment: Callable[..., Path], wheels: dict[str, Path], tiny_llama_dir: Path, tmp_path: Path
) -> None:
    """What a vendor does first, unedited: plugins new, pip install, pytest, serve."""
    binaries = environment(wheels["inferplane-api"], wheels["inferplane"])
    answer = run(binaries, "plugins", "new", "acme", "--path", "mine", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    python = str(binaries / "python")
    install = ["--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "--python", python, *install, str(tmp_path / "mine")]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    report = tmp_path / "report.json"
    kit = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--inferplane-report", str(report)],
        cwd=tmp_path / "mine",
        env=clean_variables(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert kit.returncode == 0, kit.stdout[-4000:] + kit.stderr[-2000:]
    result = json.loads(report.read_text())
    assert (result["distribution"], result["level_reached"]) == ("inferplane-acme", "core")
    assert (result["failed"], result["skipped"]) == (0, 0)
    flags = ["--platform", "acme", "--dtype", "float32", "--max-model-len", "64", "--served-model-name", "tiny"]
    with serving(binaries, str(tiny_llama_dir), *flags, cwd=tmp_path) as url:
        answered = call(f"{url}/v1/completions", {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3})
        chosen = json.dumps(call(f"{url}/server_info")["selection"])
    assert answered["usage"]["completion_tokens"] == 3
    assert '"acme.ops"' in chosen
