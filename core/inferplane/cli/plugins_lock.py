"""`inferplane plugins lock`: writes what is installed to the file that `--plugins-mode locked` holds a start to."""

from __future__ import annotations

import argparse
from pathlib import Path

from inferplane.plan.render import Table, print_tables
from inferplane.plugins.inventory import list_entry_points

DEFAULT_FILE = "inferplane-plugins.lock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    parser.add_argument("--output", type=Path, default=Path(DEFAULT_FILE), metavar="FILE", help=f"[{DEFAULT_FILE}]")


def run(arguments: argparse.Namespace) -> int:
    """Write the file and show what it holds. Raises InferplaneError when it cannot be written."""
    from inferplane.plugins.lockfile import lock_installed, write_lock

    lock = lock_installed(list_entry_points())
    write_lock(lock, arguments.output)
    rows = [(plugin.name, plugin.version, plugin.of, plugin.hash) for plugin in lock.plugins]
    title = f"Locked in {arguments.output}; start with --plugins-mode locked"
    print_tables([Table(title, ("distribution", "version", "hash of", "hash"), rows)])
    return 0
