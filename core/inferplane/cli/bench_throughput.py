"""`inferplane bench throughput`: all prompts at once, offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferplane.bench import datasets
from inferplane.bench.datasets import Shape
from inferplane.cli.bench_engine import add_engine_flags, open_engine
from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from inferplane.llm import LLM
    from inferplane_api.sampling import SamplingParams


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("measurement")
    group.add_argument("--num-prompts", type=int, default=1000, metavar="N", help="requests [1000]")
    group.add_argument("--input-len", type=int, default=512, metavar="N", help="prompt tokens of random prompts [512]")
    group.add_argument("--output-len", type=int, metavar="N", help="tokens to generate [128, or what the file says]")
    group.add_argument("--n", type=int, default=1, metavar="N", help="sequences for each prompt [1]")
    group.add_argument("--dataset-name", choices=("random", "sharegpt", "custom"), default="random", help="[random]")
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="of sharegpt and custom; see bench serve")
    group.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures as JSON")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from inferplane.bench.offline import measure_throughput
    from inferplane.bench.report import where, write_json

    if arguments.num_prompts < 1:
        raise InvalidValue("num_prompts", arguments.num_prompts, "must be at least 1")
    with open_engine(arguments) as (llm, config):
        prompts, params = _requests(llm, arguments, config.model.seed)
        result = measure_throughput(llm, prompts, params)
    print(
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.2f} total "
        f"tokens/s, {result['output_tokens_per_second']:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {result['total_num_prompt_tokens']}")
    print(f"Total num output tokens:  {result['total_num_output_tokens']}")
    if arguments.output_json is not None:
        write_json(arguments.output_json, {"model": config.model.model, **where(), **result})
    return 0


def _requests(llm: LLM, arguments: argparse.Namespace, seed: int) -> tuple[list[Any], list[SamplingParams]]:
    from inferplane.bench.offline import fixed_length, random_prompts

    count = arguments.num_prompts
    if arguments.dataset_name == "random":
        output = arguments.output_len or 128
        return random_prompts(llm, count, arguments.input_len, seed), [fixed_length(output, arguments.n)] * count
    if arguments.dataset_path is None:
        raise InvalidValue("dataset_path", None, f"dataset {arguments.dataset_name} is read from a file")
    if llm.tokenizer is None:
        raise InvalidValue("dataset_name", arguments.dataset_name, "needs a tokenizer, which this checkpoint lacks")
    samples = datasets.file_samples(
        arguments.dataset_name,
        arguments.dataset_path,
        count,
        seed,
        llm.tokenizer,  # type: ignore[arg-type]  # encodes and decodes; nothing is drawn from its ids
        arguments.output_len,
        Shape(),
    )
    return [sample.prompt for sample in samples], [fixed_length(s.output_tokens, arguments.n) for s in samples]
