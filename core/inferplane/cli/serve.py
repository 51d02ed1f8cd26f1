"""`inferplane serve [MODEL]`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from inferplane.cli.main import COMMANDS
from inferplane.config.flags import add_config_flags, collect_config, take_model
from inferplane.config.show import as_yaml, said_line
from inferplane.log import configure_logging, get_logger

if TYPE_CHECKING:
    from argparse import _SubParsersAction

log = get_logger(__name__)


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("serve", help=COMMANDS["serve"], description=COMMANDS["serve"])
    parser.add_argument(
        "model_position", nargs="?", metavar="MODEL", help="path, hub id, pypi:NAME or smollm2 (the default)"
    )
    parser.add_argument("--show-config", action="store_true", help="print every setting as a YAML file and end")
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    take_model(arguments)
    config = collect_config(arguments)
    if arguments.show_config:
        print(as_yaml(config), end="")
        return 0
    configure_logging(config.server.log_level)
    if said := said_line(config):
        log.info("settings: %s", said)
    from inferplane.launch import serve

    return serve(config)
