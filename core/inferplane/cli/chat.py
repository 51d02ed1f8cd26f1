"""`inferplane chat`: a conversation with a served model."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from inferplane.cli.main import COMMANDS
from inferplane.cli.remote import Remote, add_client_flags
from inferplane.errors import InferplaneError

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("chat", help=COMMANDS["chat"], description=COMMANDS["chat"])
    add_client_flags(parser)
    parser.add_argument("--system-prompt", metavar="TEXT", help="first message of the conversation")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="send one message, print the answer, end; - reads it")


def run(arguments: argparse.Namespace) -> int:
    """Talk until the end of the input. A failed turn ends a script, and not a conversation on a terminal."""
    with Remote(arguments) as remote:
        messages = [{"role": "system", "content": arguments.system_prompt}] if arguments.system_prompt else []
        if arguments.quick is not None:
            _turn(remote, messages, sys.stdin.read() if arguments.quick == "-" else arguments.quick)
            return 0
        if not sys.stdin.isatty():
            for line in sys.stdin:
                if line.strip():
                    _turn(remote, messages, line.rstrip("\n"))
            return 0
        return _converse(remote, messages)


def _converse(remote: Remote, messages: list[dict[str, str]]) -> int:
    print(f"{remote.model}: type a message; Ctrl-C stops an answer, Ctrl-D ends.")
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return 0
        if not line.strip():
            continue
        before = len(messages)
        try:
            _turn(remote, messages, line)
        except KeyboardInterrupt:
            # What came so far stays in the conversation: the user has read it.
            print("\n(stopped)")
        except InferplaneError as error:
            del messages[before:]
            print(f"\n{error}", file=sys.stderr)


def _turn(remote: Remote, messages: list[dict[str, str]], text: str) -> None:
    messages.append({"role": "user", "content": text})
    answer = ""
    try:
        for piece in remote.chat(messages):
            print(piece, end="", flush=True)
            answer += piece
        print()
    finally:
        messages.append({"role": "assistant", "content": answer})
