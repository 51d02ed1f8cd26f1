"""The example plugin with one line changed: what it must not do is caught and put down to it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHIP = {"INFERPLANE_EXAMPLECHIP_DEVICES": "1"}
OWNER = "inferplane-examplechip 0.1.0"

HEAD_SIZE = (
    "attention.py",
    "        self._window = context.group.window\n",
    "        if context.group.head_size % 64:\n"
    '            raise ValueError("this chip has heads of 64 and 128")\n'
    "        self._window = context.group.window\n",
)
"""Claims every multiple of 8."""

PATCH = (
    "platform.py",
    "\n\nclass ExampleChipEvent:",
    "\nfrom inferplane.engine.scheduler import Scheduler\n\n\n"
    "def check(self: object) -> None:\n"
    '    """Of the vendor\'s own."""\n\n\n'
    "Scheduler.check = check\n\n\nclass ExampleChipEvent:",
)

RUN = """\
import sys
from inferplane import LLM, SamplingParams

with LLM(sys.argv[1], dtype="float32", max_model_len=128) as llm:
    outputs = llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=2), use_tqdm=False)
    print(llm.plan.platform_name, len(outputs))
"""


@pytest.fixture
def serve(thin: Any, installed: Callable[[str], Path], tiny_llama_dir: Path) -> Callable[..., str]:
    """`serve(plugin, *arguments) -> str`: what it says when it refuses to start."""

    def run(plugin: Path, *arguments: str) -> str:
        command = ("serve", str(tiny_llama_dir), "--port", "0", "--dtype", "float32", *arguments)
        done = thin.run(*command, plugins=(plugin, installed("backends_cpu")), environment=CHIP)
        assert done.returncode == 1
        return done.stderr

    return run


def test_a_head_size_that_it_cannot_do_ends_the_start_by_name(forged: Callable[..., Path], serve: Any) -> None:
    plugin = forged(*HEAD_SIZE)
    said = serve(plugin).strip().splitlines()
    for part in (f"examplechip.paged of {OWNER}", "ValueError: this chip has heads of 64 and 128", "report it"):
        assert part in said[-1]
    assert any("attention.py" in line for line in said), "the traceback tells the author where"


def test_a_head_size_that_it_cannot_do_is_a_lie_for_the_kit(
    forged: Callable[..., Path], thin: Any, installed: Callable[[str], Path], tmp_path: Path
) -> None:
    command = [str(thin.binaries / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--pyargs", "inferplane_api.testing", "--inferplane-platform", "examplechip"]
    done = subprocess.run(
        [*command, "--inferplane-report", "report.json", "-k", "paged-full-float32"],
        cwd=tmp_path,
        env=thin.variables((forged(*HEAD_SIZE), installed("backends_cpu")), **CHIP),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    failed = [case for case in report["cases"] if case["outcome"] == "failed"]
    assert failed
    assert report["distribution"] == "inferplane-examplechip"
    for case in failed:
        assert "head_size" in case["reason"]
        assert "ValueError: this chip has heads of 64 and 128" in case["reason"]


def test_a_patch_of_the_core_is_a_warning_and_an_error_when_locked(
    forged: Callable[..., Path], thin: Any, installed: Callable[[str], Path], serve: Any, tiny_llama_dir: Path
) -> None:
    plugin = forged(*PATCH)
    plugins = (plugin, installed("backends_cpu"))
    done = subprocess.run(
        [str(thin.binaries / "python"), "-c", RUN, str(tiny_llama_dir)],
        cwd=thin.root,
        env=thin.variables(plugins, **CHIP),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "examplechip 1", done.stderr
    assert f"plugin {OWNER} changes the core" in done.stderr
    assert "inferplane.engine.scheduler.Scheduler.check" in done.stderr
    lock = thin.root / "patch.lock"
    locked = thin.run("plugins", "lock", "--output", str(lock), plugins=plugins)
    assert locked.returncode == 0, locked.stderr
    said = serve(plugin, "--plugins-mode", "locked", "--plugins-lock", str(lock)).strip().splitlines()
    for part in (OWNER, "inferplane.engine.scheduler.Scheduler.check", "--disable-plugins inferplane-examplechip"):
        assert part in said[-1]


@pytest.mark.timeout(300)
def test_the_kit_is_passed_in_full(thin: Any, installed: Callable[[str], Path], tmp_path: Path) -> None:
    command = [str(thin.binaries / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--pyargs", "inferplane_api.testing", "--inferplane-platform", "examplechip"]
    done = subprocess.run(
        [*command, "--inferplane-report", "report.json"],
        cwd=tmp_path,
        env=thin.variables((installed("plugins/examplechip"),), **CHIP),
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["platform"], report["distribution"]) == ("examplechip", "inferplane-examplechip")
    assert (report["level"], report["level_reached"], report["failed"]) == ("full", "full", 0)
    assert {case["id"] for case in report["cases"] if case["outcome"] == "skipped"} == {
        "communicator/own",
        "graphs/capture",
        "options/devices",
        "options/memory_mib",
    }
