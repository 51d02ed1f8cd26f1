"""`inferplane plugins`: what is installed, from packaging metadata alone, and the actions on it.

Imports no plugin and starts no process.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.cli.main import COMMANDS
from inferplane.config.parser import Parser
from inferplane.plan.render import Table, print_tables
from inferplane.plugins.inventory import (
    API,
    KINDS,
    Copies,
    PluginEntry,
    admits,
    list_copies,
    read_installed,
)
from inferplane_api import API_VERSION

if TYPE_CHECKING:
    from argparse import _SubParsersAction


ACTIONS = {
    "new": "write a plugin distribution to start from: a platform that runs and passes the conformance kit",
    "lock": "write the lock file: name, version and hash of every installed plugin",
}
"""Action to its help; each is a module `inferplane.cli.plugins_<action>` with `add_arguments` and `run`."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("plugins", help=COMMANDS["plugins"], description=COMMANDS["plugins"])
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object an entry point")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    for name, text in ACTIONS.items():
        _module(name).add_arguments(actions.add_parser(name, help=text, description=text))


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or do what the action says."""
    if arguments.action is not None:
        return int(_module(arguments.action).run(arguments))
    entries, faults = read_installed()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode([_as_json(entry) for entry in entries])).decode())
        return 0
    copies = list_copies(entry.distribution for entry in entries)
    unreadable = [Table("Not used, as the metadata cannot be read", ("where and why",), [(fault,) for fault in faults])]
    print_tables([_table(entries), *_copies_tables(copies), *(unreadable if faults else [])])
    return 0


def _module(action: str) -> Any:
    return import_module(f"inferplane.cli.plugins_{action}")


def note(entry: PluginEntry) -> str:
    """What metadata alone says against an entry; "" when nothing does."""
    if entry.kind not in KINDS:
        return "unknown kind"
    if not admits(entry.api_range, API_VERSION):
        return f"incompatible: wants {API} {entry.api_range}, has {API_VERSION}"
    return ""


def _table(entries: Sequence[PluginEntry]) -> Table:
    columns = ("kind", "name", "distribution", "version", API, "descriptor", "note")
    rows = [
        (
            entry.kind,
            entry.name,
            entry.distribution,
            entry.version,
            _range(entry.api_range),
            entry.value,
            note(entry),
        )
        for entry in entries
    ]
    return Table("Installed plugins (`inferplane doctor` probes them)", columns, rows)


def _copies_tables(copies: Sequence[Copies]) -> list[Table]:
    if not copies:
        return []
    rows = [(each.distribution, each.used, "; ".join(each.hidden)) for each in copies]
    return [Table("Installed more than once", ("distribution", "used", "hidden"), rows)]


def _range(specifier: str | None) -> str:
    if specifier is None:
        return "undeclared"
    return specifier or "any"


def _as_json(entry: PluginEntry) -> dict[str, object]:
    return {**msgspec.structs.asdict(entry), "kind": entry.kind, "note": note(entry)}
