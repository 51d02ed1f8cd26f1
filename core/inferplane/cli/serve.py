"""`inferplane serve [MODEL]`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from inferplane.cli.main import COMMANDS
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.errors import InvalidValue
from inferplane.log import configure_logging

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("serve", help=COMMANDS["serve"], description=COMMANDS["serve"])
    parser.add_argument(
        "model_position", nargs="?", metavar="MODEL", help="path, hub id, pypi:NAME or smollm2 (the default)"
    )
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    if arguments.model_position is not None:
        arguments.model = arguments.model_position
    elif not hasattr(arguments, "model"):
        _refuse_swallowed_model(arguments)
    config = collect_config(arguments)
    configure_logging(config.server.log_level)
    from inferplane.launch import serve

    return serve(config)


def _refuse_swallowed_model(arguments: argparse.Namespace) -> None:
    """A flag of several values takes a MODEL that follows it for one more; the default must not be served then."""
    for name, value in vars(arguments).items():
        if isinstance(value, list) and len(value) > 1 and os.path.exists(value[-1]):
            flag = "--" + name.replace("_", "-")
            raise InvalidValue(
                name, value[-1], f"was taken as a value of {flag}, and it looks like a model", remedy="put MODEL first"
            )
