"""What the offline measurements share: the engine's flags and the engine."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from inferplane.config.flags import add_config_flags, collect_config, take_model
from inferplane.log import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferplane.config import Config
    from inferplane.llm import LLM

SECTIONS = ("model", "platform", "cache", "scheduler")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """MODEL and the settings of the engine."""
    parser.add_argument("model_position", nargs="?", metavar="MODEL", help="path, hub id, pypi:NAME or smollm2")
    add_config_flags(parser, sections=SECTIONS)


@contextlib.contextmanager
def open_engine(arguments: argparse.Namespace) -> Iterator[tuple[LLM, Config]]:
    """The engine, with the prefix cache off unless it was asked for: a repeated prompt must be computed."""
    from inferplane.llm import LLM

    take_model(arguments)
    said = collect_config(arguments).said()
    if "enable_prefix_caching" not in said:
        said["enable_prefix_caching"] = False
        print("note: the prefix cache is off; --enable-prefix-caching measures with it", file=sys.stderr)
    configure_logging("warning")
    from inferplane.config import Config

    with LLM(**said) as llm:
        yield llm, Config.from_flat(said)
