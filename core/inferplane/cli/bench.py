"""`inferplane bench ACTION`: measurements of any server, and of this engine."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inferplane.cli.main import COMMANDS
from inferplane.config.parser import Parser

if TYPE_CHECKING:
    from argparse import _SubParsersAction

ACTIONS = {
    "serve": "drive any OpenAI-compatible server and tell its throughput and latencies",
    "throughput": "tokens per second of this engine without a server, all prompts at once",
    "latency": "seconds that one batch takes in this engine without a server",
    "startup": "seconds from the start of a server's process to its ready line and its first token",
}


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its actions."""
    parser = commands.add_parser("bench", help=COMMANDS["bench"], description=COMMANDS["bench"])
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    for name, text in ACTIONS.items():
        _module(name).add_flags(actions.add_parser(name, help=text, description=text))


def run(arguments: argparse.Namespace) -> int:
    """Run one action."""
    return int(_module(arguments.action).run(arguments))


def _module(action: str) -> Any:
    return import_module(f"inferplane.cli.bench_{action}")
