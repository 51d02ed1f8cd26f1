"""`inferplane explain --model M`: what would be chosen and why, from the model's config alone; reads no weights."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from inferplane.cli.main import COMMANDS
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.plan.record import selection_record
from inferplane.plan.render import decision_tables, print_tables, settings_table, startup_line

if TYPE_CHECKING:
    from argparse import _SubParsersAction

SECTIONS = ("model", "platform", "cache", "scheduler")


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("explain", help=COMMANDS["explain"], description=COMMANDS["explain"])
    parser.add_argument(
        "--json", action="store_true", help="print the record as one JSON object, the `selection` of /server_info"
    )
    add_config_flags(parser, sections=SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Plan, and print the record. Raises InferplaneError exactly where a start would."""
    from inferplane.launch import make_plan

    plan = make_plan(collect_config(arguments), weights=False).plan
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(selection_record(plan))).decode())
        return 0
    print(startup_line(plan))
    for warning in plan.warnings:
        print(f"warning: {warning}")
    print()
    print_tables([*decision_tables(plan.decisions), settings_table(plan.settings)])
    return 0
