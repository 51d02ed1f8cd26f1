"""`inferplane`: picks the command and turns an error into its last line. Commands are imported when they run."""

from __future__ import annotations

import difflib
import json
import os
import select
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from inferplane import __version__
from inferplane.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMANDS = {
    "serve": "serve a model over an OpenAI-compatible HTTP API",
    "chat": "chat with a served model",
    "complete": "complete a prompt with a served model",
    "run-batch": "answer the requests of a file in OpenAI's batch format, without a server",
    "bench": "measure any OpenAI-compatible server, or this engine",
    "plugins": "list installed plugins, without importing them",
    "doctor": "check this host and its plugins",
    "collect-env": "print versions, packages and host facts for a bug report",
    "explain": "show what would be chosen for a model, and why, without loading it",
}

EXIT_ERROR = 1
EXIT_BROKEN_PIPE = 141
"""As of a program that SIGPIPE ended, 128 + 13."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status. Ends in silence when whoever reads the output has gone (`| head`)."""
    try:
        try:
            return _run(argv)
        finally:
            # Here and not when the interpreter ends, where a failure is a traceback.
            sys.stdout.flush()
    except BrokenPipeError:
        gone = [stream for stream in (sys.stdout, sys.stderr) if _reader_is_gone(stream)]
        if not gone:
            raise  # another pipe or socket broke, which is no end of the output
        _discard(gone)
        return EXIT_BROKEN_PIPE


def _run(argv: list[str] | None) -> int:
    from inferplane.config.parser import Parser

    arguments = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="inferplane", description="LLM inference and serving on any hardware that has a plugin.")
    parser.add_argument("--version", action="version", version=f"inferplane {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, text in COMMANDS.items():
        if name == chosen:
            command_module(name).add_parser(commands)
        else:
            commands.add_parser(name, help=text)
    if chosen is not None and chosen not in COMMANDS:
        near = difflib.get_close_matches(chosen, COMMANDS, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        parser.error(f"there is no command {chosen!r}; {meant}commands are {', '.join(COMMANDS)}")
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        return int(command_module(parsed.command).run(parsed))
    except InferplaneError as error:
        if getattr(parsed, "json", False) is True:
            print_json(error)
        return report(error)
    except KeyboardInterrupt:
        return 130


def command_module(name: str) -> Any:
    """The module of a command."""
    return import_module(f"inferplane.cli.{name.replace('-', '_')}")


def _reader_is_gone(stream: TextIO) -> bool:
    """Whether a stream is a pipe that nobody reads; what could not be written stays in its buffer."""
    try:
        stream.flush()
        return _is_hung_up(stream.fileno())
    except BrokenPipeError:
        return True
    except (OSError, ValueError):  # no file at all, or closed
        return False


def _is_hung_up(descriptor: int) -> bool:
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard(streams: Iterable[TextIO]) -> None:
    """Let the interpreter flush what is left into nothing when it ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nothing, stream.fileno())
    os.close(nothing)


def print_json(error: InferplaneError) -> None:
    """The error where a program expects an answer: one JSON object with `error` on the standard output."""
    print(json.dumps({"error": {"code": error.code, "message": error.message, "remedy": error.remedy}}, indent=2))


def report(error: InferplaneError) -> int:
    """Print an error so that cause and remedy are the log's last line."""
    remedy = f"; remedy: {error.remedy}" if error.remedy else ""
    print(f"inferplane: error: {error.message}{remedy}", file=sys.stderr, flush=True)
    return EXIT_ERROR
