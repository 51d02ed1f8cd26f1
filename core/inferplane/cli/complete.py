"""`inferplane complete`: completions from a served model."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from inferplane.cli.main import COMMANDS
from inferplane.cli.remote import Remote, add_client_flags

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("complete", help=COMMANDS["complete"], description=COMMANDS["complete"])
    add_client_flags(parser)
    parser.add_argument("-q", "--quick", metavar="TEXT", help="complete this and end")


def run(arguments: argparse.Namespace) -> int:
    """Complete each line of the input."""
    remote = Remote(arguments)
    prompts = [arguments.quick] if arguments.quick is not None else (line.rstrip("\n") for line in sys.stdin)
    for prompt in prompts:
        for piece in remote.complete(prompt):
            print(piece, end="", flush=True)
        print()
    return 0
