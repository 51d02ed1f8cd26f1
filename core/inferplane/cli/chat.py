"""`inferplane chat`: a conversation with a served model."""

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
    parser = commands.add_parser("chat", help=COMMANDS["chat"], description=COMMANDS["chat"])
    add_client_flags(parser)
    parser.add_argument("--system-prompt", metavar="TEXT", help="first message of the conversation")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="send one message, print the answer, end")


def run(arguments: argparse.Namespace) -> int:
    """Talk until the end of the input."""
    remote = Remote(arguments)
    messages = [{"role": "system", "content": arguments.system_prompt}] if arguments.system_prompt else []
    if arguments.quick is not None:
        _turn(remote, messages, arguments.quick)
        return 0
    if sys.stdin.isatty():
        print(f"{remote.model}: type a message; Ctrl-D ends.")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return 0
        if line.strip():
            _turn(remote, messages, line)


def _turn(remote: Remote, messages: list[dict[str, str]], text: str) -> None:
    messages.append({"role": "user", "content": text})
    answer = ""
    for piece in remote.chat(messages):
        print(piece, end="", flush=True)
        answer += piece
    print()
    messages.append({"role": "assistant", "content": answer})
