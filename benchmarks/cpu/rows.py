"""What is measured, on which model, in which process, and against whom. Starts no process and prints nothing.

A sitting is one process of one engine: its rows are measured one after the other, in the order that stands here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import work
from work import Request, Sizes

PEERS = ("ours", "llama_cpp", "openvino", "vllm", "transformers")
KV_TOKENS = 32768
"""Of every engine: 64 sequences of 512 tokens. In bytes it follows from the model."""
MAX_SEQS = 64
CONTEXT = 4096


class Engine(Protocol):
    """What a row needs of a `Session`."""

    def generate(self, requests: Sequence[Request], shared: int = 0) -> tuple[float, list[list[int]]]: ...


@dataclass(frozen=True)
class Measured:
    """Every single value, in the row's unit, and what else is worth keeping."""

    values: list[float]
    detail: dict[str, Any]


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    unit: str
    more_is_better: bool
    sitting: str
    peers: tuple[str, ...]
    measure: Callable[[Engine, Sizes, int], Measured] | None = None
    """None: the sitting itself yields it."""


def decode_rate(engine: Engine, sizes: Sizes, round_index: int, kind: str = "decode") -> Measured:
    """Tokens after the first over the time after the first, which another prompt of the same length tells."""
    rates, detail = [], []
    for repeat in range(sizes.repeats):
        first, _ = engine.generate([(work.prompt(f"{kind} first", 32, round_index, repeat), 1)])
        whole, _ = engine.generate([(work.prompt(kind, 32, round_index, repeat), sizes.decode_out)])
        rates.append((sizes.decode_out - 1) / max(whole - first, 1e-9))
        detail.append({"first_s": first, "whole_s": whole})
    return Measured(rates, {"times": detail})


def time_to_first(length_of: Callable[[Sizes], int]) -> Callable[[Engine, Sizes, int], Measured]:
    def measure(engine: Engine, sizes: Sizes, round_index: int) -> Measured:
        length = length_of(sizes)
        prompts = [work.prompt("ttft", length, round_index, repeat) for repeat in range(sizes.repeats)]
        return Measured([1000 * engine.generate([(ids, 1)])[0] for ids in prompts], {"prompt_tokens": length})

    return measure


def throughput(engine: Engine, sizes: Sizes, round_index: int) -> Measured:
    requests = work.mixed(sizes.offline)
    seconds, outputs = engine.generate(requests)
    heads = [output[:8] for output in outputs]
    return Measured([work.output_tokens(requests) / seconds], {"seconds": seconds, "heads": heads})


def shared_prefix(engine: Engine, sizes: Sizes, round_index: int) -> Measured:
    requests = work.prefixed(sizes, round_index)
    seconds, _ = engine.generate(requests, shared=sizes.prefix)
    return Measured([work.output_tokens(requests) / seconds], {"seconds": seconds})


ROWS: tuple[Row, ...] = (
    Row("start", "process start to first token", "s", False, "bf16", PEERS),
    Row("decode", "single-stream decode, bf16", "tok/s", True, "bf16", PEERS, decode_rate),
    Row("ttft512", "TTFT of 512 tokens, bf16", "ms", False, "bf16", PEERS, time_to_first(lambda sizes: sizes.short)),
    Row("ttft2048", "TTFT of 2048 tokens, bf16", "ms", False, "bf16", PEERS, time_to_first(lambda sizes: sizes.long)),
    Row("offline", "64 mixed requests, bf16", "tok/s", True, "bf16", PEERS, throughput),
    # After the requests that fill the cache, before the context that only the prefix needs.
    Row("rss", "peak RSS, bf16, after the 64 requests", "MB", False, "bf16", PEERS),
    Row("prefix", "32 requests, shared prefix, cold", "tok/s", True, "bf16", PEERS, shared_prefix),
    Row("q4_decode", "single-stream decode, Q4_1", "tok/s", True, "q4", ("ours", "llama_cpp"), decode_rate),
    Row("q4_ttft", "TTFT of 512 tokens, Q4_1", "ms", False, "q4", ("ours",), time_to_first(lambda sizes: sizes.short)),
    Row("q4_offline", "64 mixed requests, Q4_1", "tok/s", True, "q4", ("ours",), throughput),
    Row("gemma_decode", "Gemma 3 270M Q4_K_M, decode", "tok/s", True, "gemma", ("ours", "llama_cpp"), decode_rate),
    Row("gemma_offline", "Gemma 3 270M Q4_K_M, 64 requests", "tok/s", True, "gemma", ("ours", "llama_cpp"), throughput),
    Row("contention", "decode beside two compilers, share of unloaded", "", True, "contention", ("ours",)),
    Row("http", "HTTP, 64 requests, concurrency 16", "tok/s", True, "http", ("ours", "vllm")),
    Row("http_ttft", "HTTP, p99 TTFT", "ms", False, "http", ("ours", "vllm")),
    Row("http_itl", "HTTP, p99 ITL", "ms", False, "http", ("ours", "vllm")),
)
SITTINGS = ("bf16", "q4", "gemma", "contention", "http")


@dataclass(frozen=True)
class Target:
    """A ratio that ours must reach: above 1 is always better for ours, whichever way the row counts."""

    row: str
    against: tuple[str, ...]
    """Engines of which the best counts; or `=ROW` for our own other row."""
    must: float
    stretch: float
    note: str = ""


BEST = PEERS[1:]
TARGETS: tuple[Target, ...] = (
    Target("decode", BEST, 1.0, 1.0, "stretch also: 90 % of the bandwidth probe"),
    Target("q4_decode", ("llama_cpp",), 1.7, 2.2),
    Target("q4_ttft", ("=ttft512",), 1.0, 1.3),
    Target("offline", BEST, 1.15, 1.4),
    Target("q4_offline", ("=offline",), 1.2, 1.6),
    Target("ttft512", BEST, 1.05, 1.15),
    Target("ttft2048", BEST, 1.05, 1.2),
    Target("prefix", BEST, 1.3, 1.5),
    Target("http", ("vllm",), 1.3, 1.5),
    Target("http_ttft", ("vllm",), 2.0, 3.0),
    Target("http_itl", ("vllm",), 2.0, 3.0),
    Target("start", ("vllm",), 25.0, 25.0, "must also: < 3 s; stretch: < 1.5 s"),
    Target("rss", ("vllm",), 4.0, 4.0),
    Target("rss", ("llama_cpp",), 1 / 1.5, 1 / 1.2),
    Target("contention", (), 0.35, 0.48, "the figure itself"),
    Target("gemma_decode", ("llama_cpp",), 1.1, 1.5),
    Target("gemma_offline", ("llama_cpp",), 3.0, 5.0),
)


def row_named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def median(records: Sequence[Mapping[str, Any]], row: str, peer: str) -> float | None:
    """Over the rounds of the median within a round; None where nothing was measured."""
    rounds = [
        statistics.median(record["values"]) for record in records if (record["row"], record["peer"]) == (row, peer)
    ]
    return statistics.median(rounds) if rounds else None


def ratio(ours: float, theirs: float, *, more_is_better: bool) -> float:
    """How many times better ours is."""
    return ours / theirs if more_is_better else theirs / ours


@dataclass(frozen=True)
class Verdict:
    target: Target
    ours: float
    against: str
    theirs: float | None
    ratio: float

    @property
    def word(self) -> str:
        if self.ratio >= self.target.stretch:
            return "stretch"
        return "must" if self.ratio >= self.target.must else "missed"


def judge(records: Sequence[Mapping[str, Any]], target: Target) -> Verdict | None:
    """None where ours or everything it is held against was not measured."""
    row = row_named(target.row)
    ours = median(records, row.name, "ours")
    if ours is None:
        return None
    if not target.against:
        return Verdict(target, ours, "", None, ours)
    found: list[tuple[str, float]] = []
    for name in target.against:
        theirs = median(records, name[1:], "ours") if name.startswith("=") else median(records, row.name, name)
        if theirs is not None:
            found.append((f"ours {name[1:]}" if name.startswith("=") else name, theirs))
    if not found:
        return None
    best = (max if row.more_is_better else min)(found, key=lambda each: each[1])
    return Verdict(target, ours, best[0], best[1], ratio(ours, best[1], more_is_better=row.more_is_better))
