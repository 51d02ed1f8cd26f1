"""Our own platforms pass the kit, run as a vendor runs it; and the report that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import inferplane_api
from inferplane_api.testing.case import Case, unproven
from inferplane_api.testing.plugin import PROPERTY, Conformance


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The kit in a fresh process, in a folder without settings of pytest."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments]
    return subprocess.run(
        [*command, "--pyargs", "inferplane_api.testing"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def run_with_report(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = run_pytest(folder, "--inferplane-report", "report.json", *arguments)
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    return done, json.loads((folder / "report.json").read_text())


def failures(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(case["id"], case["reason"]) for case in report["cases"] if case["outcome"] == "failed"]


def test_cpu_passes_everything(tmp_path: Path) -> None:
    done, report = run_with_report(tmp_path, "--inferplane-platform", "cpu")
    assert not failures(report)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (report["level"], report["level_reached"]) == ("full", "full")
    skipped = {case["id"]: case["reason"] for case in report["cases"] if case["outcome"] == "skipped"}
    # Where the native kernels are built, what stands in for them elsewhere is not what core takes.
    others = {case for case in skipped if "other str it may have than" not in skipped[case]}
    assert others <= {"model/taken-cpu.ops", "model/taken-cpu.linear"}
    areas = {case["area"] for case in report["cases"] if case["outcome"] == "passed"}
    expected = "descriptor import probe patches ops attention graphs kv-layout linear communicator memory model runtime"
    assert areas == set(expected.split())
    assert report["unproven"] == []


def test_the_reference_platform_passes_the_core_level(tmp_path: Path) -> None:
    done, report = run_with_report(tmp_path, "--inferplane-platform", "reference", "--inferplane-level", "core")
    assert not failures(report)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (report["platform"], report["distribution"]) == ("reference", "inferplane")
    assert (report["level"], report["level_reached"]) == ("core", "core")
    assert {case["level"] for case in report["cases"]} == {"core"}


def test_a_report_of_a_lie(tmp_path: Path, install_acme: Callable) -> None:
    install_acme({"attention": [("self.window = context.group.window", "self.window = None")]})
    done, report = run_with_report(
        tmp_path, "--inferplane-platform", "acme", "-k", "(sliding and head16) or communicator or descriptor"
    )
    assert done.returncode == 1
    assert report["version"] == "1.2"
    assert report["api_version"] == inferplane_api.API_VERSION
    assert report["level_reached"] is None
    counts = {
        name: sum(case["outcome"] == name for case in report["cases"]) for name in ("passed", "failed", "skipped")
    }
    assert counts == {name: report[name] for name in counts}
    assert counts["failed"] > 0
    assert all(set(case) == {"id", "area", "level", "outcome", "reason", "seconds"} for case in report["cases"])
    assert all("acme.loop declares kind sliding" in reason for _, reason in failures(report))
    skipped = {case["id"]: case["reason"] for case in report["cases"] if case["outcome"] == "skipped"}
    assert skipped == {"communicator/own": "the platform declares no communicator and brings none"}
    for case, reason in [*failures(report), *skipped.items()]:
        assert f"{case}: {reason}" in done.stdout, "the terminal shows every line of the report"
    assert "level reached: none" in done.stdout


def test_an_absent_device_proves_nothing(tmp_path: Path, install_acme: Callable) -> None:
    absent = 'return ProbeResult(state=ProbeState.ABSENT, reasons=(Reason(code="acme.none"),))'
    install_acme(
        {
            "probe": [
                ("    return ProbeResult(state=ProbeState.PRESENT, devices=(device,))", f"    {absent}"),
                ("import DeviceInfo,", "import Reason, DeviceInfo,"),
            ]
        }
    )
    done, report = run_with_report(tmp_path, "--inferplane-platform", "acme", "--inferplane-level", "core")
    assert not failures(report)
    assert done.returncode == 0
    assert report["level_reached"] is None
    reasons = {case["reason"] for case in report["cases"] if case["area"] in ("attention", "model", "memory")}
    assert reasons == {"the probe says ABSENT: acme.none"}


def test_a_level_that_was_run_in_part_is_not_reached(tmp_path: Path) -> None:
    _, report = run_with_report(tmp_path, "--inferplane-platform", "cpu", "-k", "descriptor")
    assert not failures(report)
    assert report["passed"] > 0
    assert report["level_reached"] is None


def test_a_skip_for_want_of_core_keeps_its_level_open() -> None:
    """Not so a skip of what the platform does not declare."""
    cases = [Case("model", "tokens", "full", "", print), Case("graphs", "capture", "performance", "", print)]
    declarations = SimpleNamespace(platform="acme", present=True, plugin=SimpleNamespace(name="acme-chip", version="1"))
    for elsewhere, level in ((True, "performance"), (False, "full")):
        kit: Any = SimpleNamespace(declarations=declarations, level="full")
        conformance = Conformance(kit, [*cases, Case("ops", "x", "core", "", print)])
        for case, outcome, proven in (
            (conformance.cases[0], "skipped", not elsewhere),
            (conformance.cases[1], "skipped", True),
            (conformance.cases[2], "passed", True),
        ):
            line = {"id": case.id, "area": case.area, "level": case.level, "outcome": outcome, "reason": "r"}
            properties = [(PROPERTY, json.dumps([line, proven]))]
            report: Any = SimpleNamespace(when="teardown", user_properties=properties)
            conformance.pytest_runtest_logreport(report)
        assert conformance.report()["level_reached"] == level


def test_what_is_declared_and_never_shown_keeps_its_level_open(tmp_path: Path, install_acme: Callable) -> None:
    """An overlay whose backend requires what somebody else's platform lacks: skipped everywhere, so proven nowhere."""
    install_acme(
        {
            "descriptor": [
                (
                    'platforms=frozenset({"acme"}),\n    kinds',
                    'platforms=frozenset({"reference"}),\n    requires=frozenset({"matrix_unit"}),\n    kinds',
                )
            ]
        },
        entry_points="[inferplane.attention]\nacme.loop = acme_chip.descriptor:ATTENTION\n",
    )
    flags = ["--inferplane-distribution", "acme_chip", "--inferplane-level", "core"]
    done, report = run_with_report(tmp_path, "--inferplane-platform", "reference", *flags)
    assert not failures(report)
    assert done.returncode == 0, done.stdout[-3000:]
    assert report["passed"] > 0
    assert report["unproven"] == ["acme.loop"]
    assert report["level_reached"] is None
    assert "not proven  acme.loop: it is declared, and no case of it passed" in done.stdout


def test_a_thing_is_proven_by_one_case_and_missed_at_the_lowest_level_of_its_cases() -> None:
    def case(name: str, level: str, proves: str = "") -> Case:
        return Case("attention", name, level, "", print, proves)

    cases = [case("a", "full", "x.a"), case("b", "performance", "x.a"), case("c", "core", "x.b"), case("d", "core")]
    assert unproven(cases, {"attention/c", "attention/d"}) == {"x.a": "performance"}
    assert unproven(cases, {"attention/a", "attention/d"}) == {"x.b": "core"}
    assert unproven(cases, {"attention/a", "attention/c"}) == {}


@pytest.mark.parametrize("module", ["inferplane_api.testing", "inferplane_api.testing.plugin"])
def test_every_run_of_pytest_pays_little_for_the_plugin(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'numpy', 'inferplane', 'safetensors'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_an_unknown_platform_is_a_usage_error(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--inferplane-platform", "warp")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no platform 'warp'; installed: " in done.stderr
    assert "cpu" in done.stderr


def test_without_a_platform_nothing_is_run(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0
    assert "1 skipped" in done.stdout
