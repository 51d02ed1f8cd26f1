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
    parser.add_argument("-q", "--quick", metavar="TEXT", help="complete this and end; - reads all of the input")


def run(arguments: argparse.Namespace) -> int:
    """Complete each line of the input."""
    with Remote(arguments) as remote:
        if arguments.quick is not None:
            _complete(remote, sys.stdin.read() if arguments.quick == "-" else arguments.quick)
            return 0
        for line in sys.stdin:
            if line.strip():
                _complete(remote, line.rstrip("\n"))
    return 0


def _complete(remote: Remote, prompt: str) -> None:
    for piece in remote.complete(prompt):
        print(piece, end="", flush=True)
    print()
