"""The work that every engine is given: raw token ids, seeded. Knows no engine and no row."""

from __future__ import annotations

import random
from dataclasses import dataclass

Request = tuple[list[int], int]
"""(prompt token ids, tokens to generate)."""

LOWEST_ID, HIGHEST_ID = 1000, 40000
"""Ordinary tokens of both models' vocabularies."""


@dataclass(frozen=True)
class Sizes:
    """How much of each kind of work; `QUICK` only proves that everything runs."""

    repeats: int = 3
    """Of a latency within one process; each has a prompt that was never seen."""
    decode_out: int = 128
    short: int = 512
    long: int = 2048
    offline: int = 64
    prefixed: int = 32
    prefix: int = 512
    prefixed_out: int = 64


FULL = Sizes()
QUICK = Sizes(repeats=1, decode_out=24, short=128, long=256, offline=6, prefixed=4, prefix=64, prefixed_out=8)


def token_ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(count)]


def prompt(kind: str, length: int, round_index: int, repeat: int) -> list[int]:
    """A prompt that no other (kind, length, round, repeat) has, so that no cache knows its beginning."""
    return token_ids(random.Random(f"{kind} {length} {round_index} {repeat}"), length)


def mixed(count: int) -> list[Request]:
    """64 to 256 tokens in, 64 to 128 out, the same at every call: 10,938 in and 6,253 out for 64 requests."""
    draw = random.Random(42)
    requests = []
    for _ in range(count):
        num_in, num_out = draw.randint(64, 256), draw.randint(64, 128)
        requests.append((token_ids(draw, num_in), num_out))
    return requests


def prefixed(sizes: Sizes, round_index: int) -> list[Request]:
    """A beginning that all share and a round has for itself, then 32 own tokens each."""
    draw = random.Random(f"prefix {round_index}")
    shared = token_ids(draw, sizes.prefix)
    return [(shared + token_ids(draw, 32), sizes.prefixed_out) for _ in range(sizes.prefixed)]


def output_tokens(requests: list[Request]) -> int:
    return sum(count for _, count in requests)
