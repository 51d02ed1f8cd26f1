"""`inferplane bench startup`: how long a server takes to start."""

from __future__ import annotations

import argparse
from pathlib import Path

from inferplane.config.flags import add_config_flags, collect_config, take_model
from inferplane.errors import InvalidValue


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("measurement")
    group.add_argument("--num-iters", type=int, default=3, metavar="N", help="starts [3]")
    group.add_argument("--start-limit", type=float, default=600.0, metavar="X", help="seconds a start may take [600]")
    group.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("model_position", nargs="?", metavar="MODEL", help="path, hub id, pypi:NAME or smollm2")
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from inferplane.bench.progress import progress
    from inferplane.bench.report import where, write_json
    from inferplane.bench.startup import measure_starts, summarize_starts

    if arguments.num_iters < 1:
        raise InvalidValue("num_iters", arguments.num_iters, "must be at least 1")
    take_model(arguments)
    config = collect_config(arguments)
    with progress("starts", arguments.num_iters, show=True) as step:
        starts = measure_starts(config.said(), arguments.num_iters, arguments.start_limit, step=step)
    result = summarize_starts(starts)
    for name, label in (("time_to_ready", "ready"), ("time_to_first_token", "first token")):
        print(
            f"Process start to {label + ' (s):':<17} first {result[f'first_{name}']:.2f}, "
            f"median {result[f'median_{name}']:.2f}, min {result[f'min_{name}']:.2f}"
        )
    for phase, seconds in result["median_phases"].items():
        print(f"  {phase + ':':<28} {seconds:.2f}")
    if arguments.output_json is not None:
        write_json(arguments.output_json, {"model": config.model.model, **where(), **result})
    return 0
