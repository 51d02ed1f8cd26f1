"""`inferplane`: picks the command and turns an error into its last line. Commands are imported when they run."""

from __future__ import annotations

import sys
from importlib import import_module

from inferplane import __version__
from inferplane.errors import InferplaneError

COMMANDS = {
    "serve": "serve a model over an OpenAI-compatible HTTP API",
    "chat": "chat with a served model",
    "complete": "complete a prompt with a served model",
    "plugins": "list installed plugins, without importing them",
    "doctor": "check this host and its plugins",
    "explain": "show what would be chosen for a model, and why, without loading it",
}

EXIT_ERROR = 1


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    from inferplane.config.parser import Parser

    arguments = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="inferplane", description="LLM inference and serving on any hardware that has a plugin.")
    parser.add_argument("--version", action="version", version=f"inferplane {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, text in COMMANDS.items():
        if name == chosen:
            import_module(f"inferplane.cli.{name}").add_parser(commands)
        else:
            commands.add_parser(name, help=text)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        return int(import_module(f"inferplane.cli.{parsed.command}").run(parsed))
    except InferplaneError as error:
        return report(error)
    except KeyboardInterrupt:
        return 130


def report(error: InferplaneError) -> int:
    """Print an error so that cause and remedy are the log's last line."""
    remedy = f"; remedy: {error.remedy}" if error.remedy else ""
    print(f"inferplane: error: {error.message}{remedy}", file=sys.stderr, flush=True)
    return EXIT_ERROR
