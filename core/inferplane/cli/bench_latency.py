"""`inferplane bench latency`: one batch, again and again, offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from inferplane.cli.bench_engine import add_engine_flags, open_engine
from inferplane.errors import InvalidValue


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("measurement")
    group.add_argument("--input-len", type=int, default=32, metavar="N", help="prompt tokens [32]")
    group.add_argument("--output-len", type=int, default=128, metavar="N", help="tokens to generate [128]")
    group.add_argument("--batch-size", type=int, default=8, metavar="N", help="prompts at once [8]")
    group.add_argument("--n", type=int, default=1, metavar="N", help="sequences for each prompt [1]")
    group.add_argument(
        "--num-iters-warmup", type=int, default=10, metavar="N", help="batches before, not measured [10]"
    )
    group.add_argument("--num-iters", type=int, default=30, metavar="N", help="batches that are measured [30]")
    group.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures as JSON")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from inferplane.bench.offline import Iterations, measure_latency
    from inferplane.bench.progress import progress
    from inferplane.bench.report import where, write_json

    for name in ("num_iters", "batch_size", "input_len", "output_len"):
        if getattr(arguments, name) < 1:
            raise InvalidValue(name, getattr(arguments, name), "must be at least 1")
    iterations = Iterations(
        batch_size=arguments.batch_size,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        num_warmups=max(0, arguments.num_iters_warmup),
        num_iters=arguments.num_iters,
        n=arguments.n,
    )
    with (
        open_engine(arguments) as (llm, config),
        progress("batches", iterations.num_warmups + iterations.num_iters, show=True) as step,
    ):
        result = measure_latency(llm, iterations, config.model.seed, step=step)
    print(f"Avg latency: {result['avg_latency']} seconds")
    for percent, value in result["percentiles"].items():
        print(f"{percent}% percentile latency: {value} seconds")
    if arguments.output_json is not None:
        write_json(arguments.output_json, {"model": config.model.model, **where(), **result})
    return 0
