"""The doctor's judgement on hand-made discoveries and, end to end, on written distributions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplane.plan.diagnose import diagnose, exit_status
from inferplane.plugins.discovery import Discovery
from inferplane.plugins.inventory import PluginEntry
from inferplane.plugins.records import NOT_EXPOSED, LeftOut, Problem, Refused
from inferplane_api.hooks import Finding
from inferplane_api.spec import ProbeState, Reason

Make = Callable[..., Any]


def messages(findings: list[Finding], level: str) -> list[str]:
    return [finding.message for finding in findings if finding.level == level]


@pytest.fixture
def cpu_only(make_host: Make, make_platform: Make) -> Discovery:
    found = Discovery(make_host())
    found.platforms.append(make_platform("cpu", tier=1, distribution="inferplane-cpu"))
    return found


def test_a_healthy_host_is_all_well(cpu_only: Discovery, make_platform: Make) -> None:
    cpu_only.platforms.append(make_platform("acme", "ABSENT"))
    findings = diagnose(cpu_only, None)
    assert exit_status(findings) == 0
    assert "platform 'cpu' would be used: cpu device" in messages(findings, "ok")


def test_hardware_without_a_package_is_told_and_no_fault(
    make_host: Make, make_platform: Make, cpu_only: Discovery
) -> None:
    cpu_only.host = make_host((0x10DE, 0x03))
    findings = diagnose(cpu_only, None)
    assert exit_status(findings) == 0
    assert "pip install inferplane-cuda" in [finding.remedy for finding in findings]


def test_nothing_to_run_on_is_an_error(make_host: Make, make_platform: Make) -> None:
    found = Discovery(make_host())
    found.platforms.append(make_platform("reference", tier=0))
    findings = diagnose(found, None)
    assert exit_status(findings) == 2
    (finding,) = [finding for finding in findings if finding.level == "error"]
    assert finding.message.startswith("no platform can run")


@pytest.mark.parametrize(("on_host", "status"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("state", ["BROKEN", "INCOMPATIBLE"])
def test_a_failed_platform(cpu_only: Discovery, make_platform: Make, state: str, on_host: bool, status: int) -> None:
    cpu_only.platforms.append(make_platform("acme", state, on_host=on_host))
    findings = diagnose(cpu_only, None)
    assert exit_status(findings) == status
    assert any(f"platform 'acme' of acme-dist 1.2 is {state}" in message for message in messages(findings, "warning"))


def test_the_remedy_of_an_incompatible_one_is_one(cpu_only: Discovery, make_platform: Make) -> None:
    hint = "pip install --upgrade acme-dist, or a core that it fits"
    cpu_only.platforms.append(make_platform("acme", "INCOMPATIBLE", reasons=(Reason(code="api.range", hint=hint),)))
    cpu_only.refused.append(
        Refused(
            group="inferplane.attention",
            name="acme.fast",
            distribution="acme-dist",
            version="1.2",
            state=ProbeState.INCOMPATIBLE,
            reason=Reason(code="api.range", hint=hint),
        )
    )
    remedies = [finding.remedy for finding in diagnose(cpu_only, None) if finding.level == "warning"]
    assert remedies == [f"{hint}; or pip uninstall acme-dist"] * 2, "to install the same again would not help"


def test_hardware_that_a_container_hides_is_a_warning_with_the_flag(cpu_only: Discovery, make_platform: Make) -> None:
    hidden = Reason(code=NOT_EXPOSED, hint="--device /dev/acme")
    cpu_only.platforms.append(make_platform("acme", "ABSENT", on_host=True, reasons=(hidden,)))
    findings = diagnose(cpu_only, None)
    assert exit_status(findings) == 1
    (finding,) = [finding for finding in findings if finding.level == "warning"]
    assert finding.remedy == "--device /dev/acme"


def test_other_faults(cpu_only: Discovery) -> None:
    entry = PluginEntry(group="inferplane.models", name="m", value="a:B", distribution="acme-models", version="3")
    cpu_only.entries = (entry,)
    cpu_only.refused.append(
        Refused(
            group="inferplane.models",
            name="m",
            distribution="acme-models",
            version="3",
            state=ProbeState.BROKEN,
            reason=Reason(code="plugin.import", hint="ImportError: x"),
        )
    )
    cpu_only.problems.append(Problem(level="error", code="variable.unknown", message="INFERPLANE_X is not a variable"))
    findings = diagnose(cpu_only, None)
    assert exit_status(findings) == 2
    warnings = messages(findings, "warning")
    assert "'m' of acme-models 3 is BROKEN: plugin.import (ImportError: x)" in warnings
    assert "acme-models 3 declares no range of inferplane-api" in warnings
    assert messages(findings, "error") == ["INFERPLANE_X is not a variable"]


def test_exit_status() -> None:
    def status(*levels: str) -> int:
        return exit_status([Finding(level=level, subject="s", message="m") for level in levels])

    assert status() == status("ok") == 0
    assert status("ok", "warning") == 1
    assert status("warning", "error", "ok") == 2
    with pytest.raises(ValueError, match="one of ok, warning, error"):
        status("of the plugin's own")


PLATFORM = """
from inferplane_api.hooks import Finding, hookimpl
from inferplane_api.spec import *
PLATFORM = PlatformSpec(name="acme", load="acme:P", probe="acme:probe", tier=5)
def probe(host):
    BODY
class Plugin:
    @hookimpl
    def inferplane_doctor(self, host):
        return [Finding(level="ok", subject="acme", message="firmware 7")]
PLUGIN = Plugin()
"""
PRESENT = "return ProbeResult(state=ProbeState.PRESENT, devices=(DeviceInfo(name='chip'),))"


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """doctor(probe body, *arguments, **variables) runs the command with a plugin beside core, and nothing else."""

    def run(body: str, *arguments: str, **variables: str) -> tuple[int, str]:
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (tmp_path / "acme.py").write_text(PLATFORM.replace("BODY", body))
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\nRequires-Dist: inferplane-api>=0.1,<0.2\n"
        )
        (info / "entry_points.txt").write_text(
            "[inferplane.platforms]\nacme = acme:PLATFORM\n[inferplane.plugins]\nacme-checks = acme:PLUGIN\n"
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INFERPLANE_")}
        result = subprocess.run(
            [sys.executable, "-m", "inferplane", "doctor", *(arguments or ("--plugins", "acme"))],
            env={**kept, "PYTHONPATH": str(tmp_path), **variables},
            capture_output=True,
            text=True,
        )
        assert result.stderr == ""
        return result.returncode, result.stdout

    return run


def test_the_command_on_a_healthy_plugin(doctor: Callable[..., tuple[int, str]]) -> None:
    status, text = doctor(PRESENT)
    assert status == 0
    assert "platform 'acme' would be used: chip" in text
    assert "firmware 7" in text, "the plugin's own check ran"
    assert "all is well (exit status 0)" in text


def test_the_command_on_a_broken_plugin(doctor: Callable[..., tuple[int, str]]) -> None:
    status, text = doctor("raise OSError('no driver')", "--plugins", "acme", "--json")
    report = json.loads(text)
    assert (status, report["status"]) == (2, 2)
    (platform,) = (each for each in report["platforms"] if each["name"] == "acme")
    assert platform["result"]["state"] == "BROKEN"
    assert any("OSError: no driver" in finding["message"] for finding in report["findings"])
    assert report["host"]["torch_version"]


def test_the_command_on_a_wrong_name(doctor: Callable[..., tuple[int, str]]) -> None:
    status, text = doctor(PRESENT, "--plugins", "acne")
    assert status == 2
    assert "did you mean 'acme'?" in text


def test_the_command_on_a_wrong_variable(doctor: Callable[..., tuple[int, str]]) -> None:
    status, text = doctor(PRESENT, INFERPLANE_PLUGIN="x", INFERPLANE_PLUGINS="acme")
    assert status == 2, "so near to one that exists, it is not of a plugin that the list leaves out"
    assert "INFERPLANE_PLUGIN is not a variable" in text
    assert "did you mean INFERPLANE_PLUGINS?" in text


def test_what_is_left_out_is_told_and_no_fault(cpu_only: Discovery) -> None:
    reason = Reason(code="plugin.not_locked", hint="not in the lock file")
    cpu_only.left_out = (LeftOut(distribution="acme-npu", version="1.2", names=("acme",), reason=reason),)
    findings = diagnose(cpu_only, None)
    assert exit_status(findings) == 0
    assert "acme-npu 1.2 is left out: plugin.not_locked (not in the lock file)" in messages(findings, "ok")


def test_the_command_on_a_wrong_build_of_torch(doctor: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    import torch

    local = torch.__version__.partition("+")[2]
    status, text = doctor(f"{PRESENT}\nPLATFORM = PlatformSpec(name='acme', load='acme:P', probe='acme:probe', tier=5,"
                          " torch_builds=('no-such-build',))")  # fmt: skip
    assert status == (2 if local else 0), "a version without a local part names no build"
    if local:
        assert f"torch.build: torch build wants no-such-build, has {local}" in text
        assert "no platform can run" in text


def test_the_command_on_stale_metadata(doctor: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "~cme-0.9.dist-info").mkdir()
    status, text = doctor(PRESENT)
    assert status == 1
    assert f"left over: ~cme-0.9.dist-info in {tmp_path}" in text


def test_the_command_on_two_copies(doctor: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "acme-0.9.dist-info").mkdir(parents=True)
    (old / "acme-0.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 0.9\n")
    status, text = doctor(PRESENT, "--plugins", "acme", PYTHONPATH=os.pathsep.join((str(tmp_path), str(old))))
    assert status == 1
    assert f"acme is there more than once: 1.0 in {tmp_path} is used, not 0.9 in {old}" in text


def test_the_command_on_a_plugin_that_changes_the_core(doctor: Callable[..., tuple[int, str]]) -> None:
    status, text = doctor(f"PageSizes.allows = None\n    {PRESENT}")
    assert status == 1
    assert "plugin acme 1.0 changes the core" in text
    assert "inferplane_api.spec.PageSizes.allows" in text


def test_the_command_calls_only_what_was_read_usable(doctor: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    doctor(PRESENT)
    points = tmp_path / "acme-1.0.dist-info" / "entry_points.txt"
    extra = "[inferplane.parsers]\nodd-parser = acme:PLATFORM\n[inferplane.paresrs]\nodd = acme:PLATFORM\n"
    table = _rows(tmp_path, points.read_text() + extra)
    assert "usable" not in table["odd-parser"]
    assert "not read" in table["odd-parser"]
    assert "unknown kind" in table["odd"]
    assert "usable" in table["acme-checks"]


def _rows(folder: Path, points: str) -> dict[str, str]:
    """Name of an entry to its row of the doctor's table."""
    (folder / "acme-1.0.dist-info" / "entry_points.txt").write_text(points)
    code = (
        "from inferplane.cli.doctor import _plugin_table\n"
        "from inferplane.config import PlatformConfig\nfrom inferplane.host.facts import collect_host\n"
        "from inferplane.plugins.discovery import discover\nimport json\n"
        "with discover(collect_host(), PlatformConfig(plugins=('acme',)), strict=False) as found:\n"
        "    print(json.dumps([list(row) for row in _plugin_table(found).rows]))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFERPLANE_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {row[1]: " ".join(row) for row in json.loads(done.stdout)}


SECRET = "s3same-open"


def test_no_command_shows_a_secret(doctor: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    option = "Option(name='key', doc='Opens it.', variable='INFERPLANE_ACME_API_KEY')"
    body = (
        f"{PRESENT}\nPLATFORM = PlatformSpec(name='acme', load='acme:P', probe='acme:probe', tier=5,"
        f" options=({option}, Option(name='access_token', type='int', doc='A number.')))"
    )
    variables = dict.fromkeys(("INFERPLANE_API_KEY", "HF_TOKEN", "INFERPLANE_ACME_API_KEY"), SECRET)
    for arguments in (
        ("--plugins", "acme", "--json"),
        ("--plugins", "acme", "--platform-option", f"key={SECRET}"),
        ("--plugins", "acme", "--json", "--platform-option", f"access_token={SECRET}"),
    ):
        _, text = doctor(body, *arguments, **variables)
        assert "acme" in text
        assert SECRET not in text
