"""What is wrong with an installation, as findings with remedies: the doctor's judgement. Prints nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from inferplane.errors import InferplaneError
from inferplane.plan.select_platform import Situation, explain_state, missing_packages, remedy_for, select_platform
from inferplane.plugins.inventory import API, CORE, PluginEntry, installed, list_copies, list_leftovers
from inferplane.plugins.records import NOT_EXPOSED, Refused
from inferplane_api.hooks import Finding
from inferplane_api.spec import ProbeState

if TYPE_CHECKING:
    from inferplane.plugins.discovery import Discovery
    from inferplane.plugins.records import LeftOut

EXIT_STATUS = {"ok": 0, "warning": 1, "error": 2}


def diagnose(discovery: Discovery, requested: str | None) -> list[Finding]:
    """Every finding, the good ones included. `requested` is the platform the user names, None: automatic."""
    findings = [_torch(discovery.host.torch_version)]
    findings += _selection(discovery, requested)
    findings += _platforms(discovery)
    findings += _parts(discovery)
    findings += _undeclared(discovery.entries)
    findings += _copies(discovery.entries)
    findings += _leftovers()
    findings += _left_out(discovery)
    findings += [
        Finding(level=problem.level, subject=problem.code, message=problem.message, remedy=problem.remedy)
        for problem in discovery.problems
    ]
    findings += discovery.findings("inferplane_doctor", host=discovery.host)
    return findings


def exit_status(findings: Iterable[Finding]) -> int:
    """0 when all is well, 1 with a warning, 2 with an error."""
    return max((EXIT_STATUS[finding.level] for finding in findings), default=0)


def _torch(version: str | None) -> Finding:
    if version is None:
        return Finding(level="error", subject="torch", message="torch is not installed", remedy="pip install torch")
    return Finding(level="ok", subject="torch", message=f"torch {version}")


def _selection(discovery: Discovery, requested: str | None) -> list[Finding]:
    """What a start would do, and hardware that it would leave unused for want of a package."""
    situation = Situation(discovery.platforms, discovery.host, discovery.hardware, installed, discovery.left_out)
    findings = []
    try:
        choice = select_platform(situation, requested)
    except InferplaneError as error:
        findings.append(Finding(level="error", subject="start", message=error.message, remedy=error.remedy))
    else:
        devices = ", ".join(device.name or "unnamed" for device in choice.found.result.devices)
        message = f"platform {choice.found.name!r} would be used: {devices}"
        findings.append(Finding(level="ok", subject="start", message=message))
    for known in missing_packages(situation):
        message = f"{known.label} is visible and its package is not installed"
        findings.append(Finding(level="ok", subject="hardware", message=message, remedy=f"pip install {known.package}"))
    return findings


def _platforms(discovery: Discovery) -> list[Finding]:
    findings = []
    for found in discovery.platforms:
        hints = "; ".join(reason.hint for reason in found.result.reasons if reason.hint)
        if found.state in (ProbeState.BROKEN, ProbeState.INCOMPATIBLE):
            remedy = f"{remedy_for(found, ())}; or pip uninstall {found.distribution}"
            findings.append(Finding(level="warning", subject="platform", message=explain_state(found), remedy=remedy))
        elif any(reason.code == NOT_EXPOSED for reason in found.result.reasons):
            findings.append(Finding(level="warning", subject="platform", message=explain_state(found), remedy=hints))
    return findings


def _parts(discovery: Discovery) -> list[Finding]:
    return [
        Finding(
            level="warning",
            subject=item.group,
            message=f"{item.name!r} of {item.distribution} {item.version} is {item.state.value}: {item.reason}",
            remedy=f"{_part_remedy(item)}; or pip uninstall {item.distribution}",
        )
        for item in discovery.refused
    ]


def _part_remedy(item: Refused) -> str:
    """As `remedy_for` a platform: what is of another version is not repaired by installing it again."""
    if item.state is ProbeState.INCOMPATIBLE:
        return item.reason.hint or f"pip install --upgrade {item.distribution}"
    return f"pip install --upgrade --force-reinstall --no-deps {item.distribution}"


def _undeclared(entries: Iterable[PluginEntry]) -> list[Finding]:
    """Plugins whose metadata does not say which contract they are written for."""
    owners = sorted({f"{entry.distribution} {entry.version}" for entry in entries if entry.api_range is None})
    return [
        Finding(
            level="warning",
            subject="packaging",
            message=f"{owner} declares no range of {API}",
            remedy=f'its author adds "{API}>=X,<Y" to its dependencies',
        )
        for owner in owners
    ]


def _leftovers() -> list[Finding]:
    """What pip renamed when it replaced a package, and did not remove."""
    return [
        Finding(level="warning", subject="packaging", message=f"left over: {place}", remedy="delete this folder")
        for place in list_leftovers()
    ]


def _left_out(discovery: Discovery) -> list[Finding]:
    """Installed, and not used because the user says so: no fault."""
    used = {entry.distribution for entry in discovery.entries}
    return [
        Finding(
            level="ok",
            subject="plugins",
            message=f"{item.distribution} {item.version} is left out{_part(item, used)}: {item.reason}",
            remedy=item.remedy,
        )
        for item in discovery.left_out
    ]


def _part(item: LeftOut, used: Container[str]) -> str:
    return f" in part ({', '.join(item.names)})" if item.distribution in used else ""


def _copies(entries: Iterable[PluginEntry]) -> list[Finding]:
    """Distributions that are there twice: which copy runs depends on the order of the path."""
    names = {entry.distribution for entry in entries} | {API, CORE, "torch"}
    return [
        Finding(
            level="warning",
            subject="packaging",
            message=f"{each.distribution} is there more than once: {each.used} is used, not {'; '.join(each.hidden)}",
            remedy=f"remove the copy that you do not want: pip uninstall {each.distribution}, or stale metadata",
        )
        for each in list_copies(names)
    ]
