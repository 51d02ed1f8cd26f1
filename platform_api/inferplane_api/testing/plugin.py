"""The pytest plugin: options, the JSON report and the summary. Does nothing without `--inferplane-platform`."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inferplane_api import API_VERSION
from inferplane_api.testing.case import LEVELS, reached, unproven

if TYPE_CHECKING:
    from inferplane_api.testing.case import Case
    from inferplane_api.testing.kit import Kit

PROPERTY = "inferplane"
"""Key of a test's user property: its line of the report, and whether a skip still counts as proven."""


class Conformance:
    """The kit of this process and, in the process that reports, the outcomes."""

    def __init__(self, kit: Kit, cases: list[Case]) -> None:
        self.kit = kit
        self.cases = cases
        self.lines: list[dict[str, Any]] = []
        self._unproven: set[str] = set()
        """Ids of skipped cases that could be run elsewhere."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test is over. With xdist this runs in the process that reports; the test's property carries its line."""
        for key, value in report.user_properties:
            if report.when == "teardown" and key == PROPERTY:
                line, proven = json.loads(str(value))
                self.lines.append(line)
                if not proven:
                    self._unproven.add(line["id"])

    def report(self) -> dict[str, Any]:
        """The JSON report."""
        declarations = self.kit.declarations
        outcomes = [line["outcome"] for line in self.lines]
        done = {line["id"] for line in self.lines} - self._unproven
        open_levels = {line["level"] for line in self.lines if line["outcome"] == "failed"}
        open_levels |= {case.level for case in self.cases if case.id not in done}
        run = {line["id"]: line["outcome"] for line in self.lines}
        passed = {name for name, outcome in run.items() if outcome == "passed"}
        nothing_shown = unproven([case for case in self.cases if case.id in run], passed)
        open_levels |= set(nothing_shown.values())
        present = declarations.present and "passed" in outcomes
        return {
            "platform": declarations.platform,
            "distribution": declarations.plugin.name,
            "version": declarations.plugin.version,
            "api_version": API_VERSION,
            "level": self.kit.level,
            "cases": self.lines,
            **{outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")},
            "unproven": sorted(nothing_shown),
            "level_reached": reached(self.kit.level, open_levels, present),
        }


KEY = pytest.StashKey[Conformance]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the kit."""
    group = parser.getgroup("inferplane", "Inferplane conformance kit")
    group.addoption("--inferplane-platform", metavar="NAME", help="platform whose declarations are proven")
    group.addoption(
        "--inferplane-level", choices=LEVELS, default="full", help="how much of the kit is run (default: full)"
    )
    group.addoption("--inferplane-report", metavar="FILE", help="where the JSON report goes")
    group.addoption(
        "--inferplane-distribution",
        metavar="NAME",
        help="prove what this distribution adds to the platform, instead of the platform's own distribution",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the plugin's declarations and generate the cases."""
    platform = config.getoption("--inferplane-platform")
    if platform is None:
        return
    from inferplane_api.testing.generate import make_conformance

    distribution, level = config.getoption("--inferplane-distribution"), config.getoption("--inferplane-level")
    try:
        conformance = make_conformance(platform, distribution, level)
    except LookupError as error:
        raise pytest.UsageError(f"--inferplane-platform: {error.args[0]}") from None
    config.stash[KEY] = conformance
    config.pluginmanager.register(conformance, "inferplane-conformance-report")


def pytest_report_header(config: pytest.Config) -> str | None:
    """One line that says what is under test."""
    conformance = config.stash.get(KEY, None)
    if conformance is None:
        return None
    declarations = conformance.kit.declarations
    plugin = declarations.plugin
    return (
        f"inferplane: platform {declarations.platform}, {plugin.name} {plugin.version}, "
        f"level {conformance.kit.level}, {len(conformance.cases)} cases"
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Any:
    """Every skipped case with its reason, every lie in one line, and the level that was reached."""
    yield
    conformance = config.stash.get(KEY, None)
    if conformance is None or not conformance.lines:
        return
    report = conformance.report()
    terminalreporter.section(f"inferplane conformance: {report['distribution']} {report['version']}")
    for outcome, word in (("skipped", "not tested"), ("failed", "FAILED")):
        for line in report["cases"]:
            if line["outcome"] == outcome:
                terminalreporter.write_line(f"{word}  {line['id']}: {line['reason']}")
    for line in report["cases"]:
        if line["outcome"] == "passed" and line["reason"]:
            terminalreporter.write_line(f"warning  {line['id']}: {line['reason']}")
    for name in report["unproven"]:
        terminalreporter.write_line(f"not proven  {name}: it is declared, and no case of it passed")
    counts = ", ".join(f"{report[name]} {name}" for name in ("passed", "failed", "skipped"))
    terminalreporter.write_line(f"level reached: {report['level_reached'] or 'none'} ({counts})")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report and close the platform."""
    conformance = session.config.stash.get(KEY, None)
    if conformance is None:
        return
    # What a close raises is told by the case about it; the report is written all the same.
    with contextlib.suppress(Exception):
        conformance.kit.close()
    shutil.rmtree(conformance.kit.folder, ignore_errors=True)
    path = session.config.getoption("--inferplane-report")
    if path is not None and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps(conformance.report(), indent=1) + "\n", encoding="utf-8")
