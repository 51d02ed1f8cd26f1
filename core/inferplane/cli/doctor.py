"""`inferplane doctor`: checks this host and its plugins. Exit status 0: all well, 1: warnings, 2: errors."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.cli.main import COMMANDS
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.errors import InferplaneError
from inferplane.host.facts import collect_host
from inferplane.host.hardware import load_hardware_table
from inferplane.plan.diagnose import diagnose, exit_status
from inferplane.plan.render import Table, print_tables
from inferplane.plugins.discovery import Discovery, discover
from inferplane.plugins.inspection import DESCRIPTORS
from inferplane.plugins.inventory import API, KINDS, PluginEntry
from inferplane.plugins.records import FoundPlatform
from inferplane_api import API_VERSION
from inferplane_api.hooks import Finding
from inferplane_api.spec import HostInfo

if TYPE_CHECKING:
    from argparse import _SubParsersAction

VERDICTS = {0: "all is well", 1: "there are warnings", 2: "there are errors"}


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("doctor", help=COMMANDS["doctor"], description=COMMANDS["doctor"])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_flags(parser, sections=("platform",))


def run(arguments: argparse.Namespace) -> int:
    """Print the report; the exit status tells the worst finding."""
    config = collect_config(arguments).platform
    host = collect_host()
    try:
        with discover(host, config, strict=False) as discovery:
            findings = diagnose(discovery, config.platform)
            tables = [_platform_table(discovery), _plugin_table(discovery)]
            record = _record(discovery)
    except InferplaneError as error:
        # A name in the user's lists that is not installed: nothing was probed.
        findings = [Finding(level="error", subject="plugins", message=error.message, remedy=error.remedy)]
        tables, record = [], {}
    status = exit_status(findings)
    if arguments.json:
        report = {"host": host, **record, "findings": findings, "status": status}
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
        return status
    print_tables([_host_table(host), *tables, _finding_table(findings)])
    print(f"\n{VERDICTS[status]} (exit status {status})")
    return status


def _host_table(host: HostInfo) -> Table:
    rows = [
        ("system", f"{host.os} {host.machine}, Python {platform.python_version()} ({sys.executable})"),
        ("processor", f"{host.cpu_model or 'unknown'}, {host.cpu_count} usable"),
        ("memory", f"{host.memory_bytes / 2**30:.1f} GiB usable"),
        ("hardware", _visible(host)),
        ("torch", host.torch_version or "not installed"),
        (API, API_VERSION),
    ]
    return Table("Host", ("fact", "value"), rows)


def _visible(host: HostInfo) -> str:
    """Known hardware on the bus."""
    seen = [
        f"{known.label} x{sum(known.matches(device) for device in host.pci_devices)}"
        for known in load_hardware_table().hardware
        if known.seen_on(host)
    ]
    return ", ".join(seen) or "no known accelerator on the bus"


def _platform_table(discovery: Discovery) -> Table:
    rows = []
    for found in discovery.platforms:
        details = [device.name or "unnamed" for device in found.result.devices]
        details += [str(reason) for reason in found.result.reasons]
        wants = _wanted_torch(found)
        rows.append(
            (
                found.name,
                str(found.tier),
                found.state.value,
                f"{found.distribution} {found.version}",
                wants,
                "; ".join(details),
            )
        )
    return Table("Platforms", ("platform", "tier", "state", "distribution", "wants torch", "devices or reasons"), rows)


def _wanted_torch(found: FoundPlatform) -> str:
    """ ">=2.9 +cpu*": versions, and builds."""
    if found.spec is None:
        return "unknown"
    builds = [f"+{build}*" for build in found.spec.torch_builds]
    return " ".join([found.spec.requires_torch, *builds]).strip() or "any"


def _plugin_table(discovery: Discovery) -> Table:
    refused = {(item.group, item.name): item for item in discovery.refused}
    rows = []
    for entry in discovery.entries:
        if entry.kind == "platforms":
            continue
        item = refused.get((entry.group, entry.name))
        state = f"{item.state.value}: {item.reason}" if item is not None else _unrefused_state(entry)
        rows.append((entry.kind, entry.name, f"{entry.distribution} {entry.version}", state))
    return Table("Other plugins", ("kind", "name", "distribution", "state"), rows)


def _unrefused_state(entry: PluginEntry) -> str:
    if entry.kind not in KINDS:
        return "of an unknown kind, not read"
    return "usable" if entry.group in DESCRIPTORS else "not read: this version uses no plugin of this kind"


def _finding_table(findings: Sequence[Finding]) -> Table:
    rows = [(finding.level, finding.subject, finding.message, finding.remedy) for finding in findings]
    return Table("Findings", ("level", "subject", "finding", "remedy"), rows)


def _record(discovery: Discovery) -> dict[str, Any]:
    return {
        "platforms": discovery.platforms,
        "entries": discovery.entries,
        "refused": discovery.refused,
        "seconds": discovery.seconds,
    }
