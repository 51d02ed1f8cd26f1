"""The code of the pages for plugin authors is the code that runs: excerpts are verbatim, and the steps are followed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from inferplane.cli.main import main
from inferplane.cli.plugins_new import make_names, render

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
EXAMPLES = DOCS / "examples"
BACKEND = DOCS / "write-a-backend.md"
WHOLE = ", whole"


class Block(NamedTuple):
    """One fenced block."""

    title: str
    code: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(
        r'^```\w+ title="([^"]+)"\n(.*?)^```', page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Block(*each) for each in found]


def steps() -> dict[str, str]:
    """The files that write-a-backend.md gives as a whole."""
    return {block.title.removesuffix(WHOLE): block.code for block in blocks(BACKEND) if block.title.endswith(WHOLE)}


EXCERPTS = [
    pytest.param(page, block, id=f"{page.name}-{number}")
    for page in (DOCS / "add-attention.md", DOCS / "add-format.md")
    for number, block in enumerate(blocks(page))
]


@pytest.mark.parametrize(("page", "block"), EXCERPTS)
def test_excerpts_are_verbatim(page: Path, block: Block) -> None:
    assert block.code in (EXAMPLES / block.title).read_text(encoding="utf-8")


def test_excerpts_of_the_scaffold_are_verbatim() -> None:
    written = render(make_names("acme"))
    excerpts = [block for block in blocks(BACKEND) if not block.title.endswith(WHOLE)]
    assert excerpts
    for block in excerpts:
        assert block.code in written[block.title]


def test_no_python_is_left_out() -> None:
    for page in (BACKEND, DOCS / "add-attention.md", DOCS / "add-format.md"):
        fences = re.findall(r"^```(?:python|toml)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == len(blocks(page)), "a block without a title is not tested"


def test_every_example_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("add-*.md"))
    assert all(f'title="{folder.name}/' in text for folder in EXAMPLES.iterdir() if folder.is_dir())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scaffold after all steps of the page but the probe: there is no such device here."""
    folder = tmp_path_factory.mktemp("afternoon") / "inferplane-acme"
    assert main(["plugins", "new", "acme", "--path", str(folder)]) == 0
    for title, code in steps().items():
        assert (folder / title).is_file(), f"the scaffold has no {title}"
        if not title.endswith("probe.py"):
            (folder / title).write_text(code, encoding="utf-8")
    return folder


@pytest.mark.parametrize("title", steps())
def test_the_steps_are_clean(title: str, tmp_path: Path) -> None:
    file = tmp_path / Path(title).name
    file.write_text(steps()[title], encoding="utf-8")
    rules = ["--isolated", "--line-length", "120", "--target-version", "py311", str(file)]
    for command in (["check", "--select", "E,F,UP,B,SIM,RUF,ANN"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *rules], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_kit_is_green_after_the_steps(
    project: Path, install_wheel: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    install_wheel(project, tmp_path / "site")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--inferplane-report", str(report)]
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    result = json.loads(report.read_text())
    assert (result["level_reached"], result["failed"]) == ("core", 0)
    passed = {case["id"] for case in result["cases"] if case["outcome"] == "passed"}
    assert {"ops/acme.ops-rms_norm@1-float32", "model/tokens"} <= passed


@pytest.fixture
def probe(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The page's probe."""
    monkeypatch.syspath_prepend(str(project))
    spec = importlib.util.spec_from_loader("acme_probe", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(steps()["inferplane_acme/probe.py"], vars(module))
    yield module
    for name in [name for name in sys.modules if name.startswith("inferplane_acme")]:
        del sys.modules[name]


def test_the_probe_finds_devices_and_says_what_to_do_without(
    probe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferplane_api.spec import HostInfo, ProbeState

    host = HostInfo(os="linux", machine="x86_64")
    monkeypatch.setattr(probe.glob, "glob", lambda pattern: [])
    nothing = probe.probe(host)
    assert nothing.state is ProbeState.ABSENT
    assert "modprobe" in nothing.reasons[0].hint
    monkeypatch.setattr(probe.glob, "glob", lambda pattern: ["/dev/acme1", "/dev/acme0"])
    assert [device.index for device in probe.probe(host).devices] == [0, 1]


def test_the_contract_page_is_the_contract() -> None:
    spec = importlib.util.spec_from_file_location("generate_contract", DOCS / "generate_contract.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.render(), "run python docs/generate_contract.py"
    every = {
        path.relative_to(module.PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for path in module.PACKAGE.rglob("*.py")
    }
    ours = {name for name in every if not name.startswith(("testing", "internal")) and not name.endswith("__init__")}
    assert ours - set(module.MODULES) == {"reference.ops_inputs"}
