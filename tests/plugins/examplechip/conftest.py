"""Thin clean environments: core and contract from wheels in a virtual environment, plugins as pip installs them.

A plugin is installed with `pip install --target` into a folder of its own, and a case names the folders that it wants
on PYTHONPATH: metadata is found there as in site-packages, and no case pays for an environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT = 120.0

SITECUSTOMIZE = """\
import os

if root := os.environ.get("TEST_SYS_ROOT"):
    from pathlib import Path

    from inferplane.host import facts

    facts.collect_host.__kwdefaults__["sys_root"] = Path(root)
"""
"""The pretended host: its bus is what a folder says."""


def build_wheel(source: Path, folder: Path) -> Path:
    """Build from a copy outside the repository, as a stranger does."""
    copy = folder / "source" / source.name
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    before = set(folder.glob("*.whl"))
    quick = {**os.environ, "SKBUILD_CMAKE_DEFINE": "INFERPLANE_CPU_ISAS=portable"}
    subprocess.run(command, cwd=copy, check=True, capture_output=True, timeout=LIMIT, env=quick)
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


def pip_install(wheel: Path, *options: str) -> None:
    command = [sys.executable, "-m", "pip", *options[:2], "--disable-pip-version-check", "install", *options[2:]]
    plain = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    done = subprocess.run([*command, *plain, str(wheel)], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr


class Thin:
    """One virtual environment without any platform, and what to run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.binaries = root / "bin"

    def variables(self, plugins: tuple[Path, ...] = (), **more: str) -> dict[str, str]:
        """The environment of a case: nothing of the developer's own but what is installed, and these plugins."""
        dropped = ("PYTHON", "INFERPLANE_", "VIRTUAL_ENV", "COV_", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        path = os.pathsep.join(map(str, plugins))
        return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}

    def start(self, *arguments: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """The installed `inferplane` command."""
        return subprocess.Popen(
            [str(self.binaries / "inferplane"), *arguments],
            cwd=self.root,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *arguments: str, plugins: tuple[Path, ...] = (), environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it to the end."""
        process = self.start(*arguments, environment=self.variables(plugins, **(environment or {})))
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture(scope="session")
def thin(tmp_path_factory: pytest.TempPathFactory) -> Thin:
    """An environment with core and contract from wheels; everything of third parties is linked."""
    folder = tmp_path_factory.mktemp("thin")
    third_party = folder / "third-party"
    third_party.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        ours = re.match(r"(_editable_impl_)?inferplane", entry.name, re.IGNORECASE)
        if not ours and entry.suffix != ".pth" and entry.name != "__pycache__":
            (third_party / entry.name).symlink_to(entry)
    root = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True, timeout=LIMIT)
    for name in ("platform_api", "core"):
        pip_install(build_wheel(REPOSITORY / name, folder), "--python", str(root / "bin" / "python"))
    site = next(root.glob("lib/python*/site-packages"))
    (site / "third_party.pth").write_text(f"{third_party}\n", encoding="utf-8")
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    return Thin(root)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`installed("backends_cpu") -> Path`: a distribution of the repository, built elsewhere and installed."""
    made: dict[str, Path] = {}

    def install(source: str) -> Path:
        if source not in made:
            folder = tmp_path_factory.mktemp(source.replace("/", "-"))
            pip_install(build_wheel(REPOSITORY / source, folder), "--no-input", "-q", "--target", str(folder / "site"))
            made[source] = folder / "site"
        return made[source]

    return install


@pytest.fixture(scope="session")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`forged(file, old, new) -> Path`: the example plugin with one line of one module changed, built and installed."""

    def install(file: str, old: str, new: str) -> Path:
        folder = tmp_path_factory.mktemp("forged")
        source = folder / "examplechip"
        shutil.copytree(REPOSITORY / "plugins" / "examplechip", source, ignore=shutil.ignore_patterns("__pycache__"))
        module = source / "inferplane_examplechip" / file
        text = module.read_text(encoding="utf-8")
        assert text.count(old) == 1
        module.write_text(text.replace(old, new), encoding="utf-8")
        pip_install(build_wheel(source, folder), "--no-input", "-q", "--target", str(folder / "site"))
        return folder / "site"

    return install


@pytest.fixture(scope="session")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`vendor(name, descriptor, **modules) -> Path`: NAME-inferplane 1.2.3 with the platform NAME, built and installed.
    {name} in a module's text is the name."""

    def install(
        name: str, descriptor: str, *, api: str = "inferplane-api>=0.1,<0.2", entries: str = "", **modules: str
    ) -> Path:
        folder = tmp_path_factory.mktemp(name)
        package = folder / "package" / f"{name}_inferplane"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        for module, text in {"descriptor": descriptor, **modules}.items():
            (package / f"{module}.py").write_text(text.replace("{name}", name))
        (package.parent / "pyproject.toml").write_text(
            f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            f'[project]\nname = "{name}-inferplane"\nversion = "1.2.3"\ndependencies = ["{api}"]\n'
            f'[project.entry-points."inferplane.platforms"]\n{name} = "{name}_inferplane.descriptor:PLATFORM"\n'
            f"{entries.replace('{name}', name)}"
            f'[tool.hatch.build.targets.wheel]\npackages = ["{name}_inferplane"]\n'
        )
        wheel = build_wheel(package.parent, folder)
        pip_install(wheel, "--no-input", "-q", "--target", str(folder / "site"))
        return folder / "site"

    return install


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The /sys of a host whose bus shows one accelerator of a vendor that nobody knows."""
    root = tmp_path_factory.mktemp("sys")
    device = root / "bus" / "pci" / "devices" / "0000:01:00.0"
    device.mkdir(parents=True)
    for name, value in (("vendor", "0x1ace"), ("device", "0x0001"), ("class", "0x120000")):
        (device / name).write_text(f"{value}\n")
    return root


@pytest.fixture(scope="session")
def record() -> Callable[[subprocess.CompletedProcess[str]], dict[str, Any]]:
    """What `explain --json` printed."""

    def read(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return read
