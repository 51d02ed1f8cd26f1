"""Inputs on which a provider's op is compared with its reference; a list of keyword arguments per op.

Every generator is `f(dtype, device, generator) -> list[dict[str, Any]]`, random numbers coming from the (host)
generator. Cases include what kernels get wrong: one row, odd sizes, views with strides, padded slots, large values.
Ops that work in place return None: compare the arguments afterwards (`kv` holds the cache of kv_write).
"""

from __future__ import annotations

from typing import Any

import torch

from inferplane_api.kv import KVLayout, KVView

Case = dict[str, Any]

_NUM_TOKENS = (1, 3, 17)
_WIDTHS = (64, 100, 576, 5128)


class _Source:
    """Random tensors of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
        self.dtype, self.device, self.generator = dtype, device, generator

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(device=self.device, dtype=dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator, dtype=dtype).to(self.device)

    def strided(self, *shape: int) -> torch.Tensor:
        """A view into the middle of a wider tensor along the dimension before the last."""
        *outer, middle, last = shape
        return self.normal(*outer, middle + 3, last)[..., 2 : middle + 2, :]


def embedding(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Tables of odd size; repeated, first and last ids."""
    source = _Source(dtype, device, generator)
    cases = [
        {"ids": source.integers(0, 101, tokens), "weight": source.normal(101, width)}
        for tokens in _NUM_TOKENS
        for width in _WIDTHS
    ]
    ends = torch.tensor([0, 100, 100, 0], device=device)
    return [*cases, {"ids": ends, "weight": source.normal(101, 64)}]


def rms_norm(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Rows, heads that are views of a wider tensor, both offsets, tiny and large values, an all-zero row."""
    source = _Source(dtype, device, generator)
    inputs = [source.normal(tokens, width) for tokens in _NUM_TOKENS for width in _WIDTHS]
    inputs += [source.strided(5, 4, 64), 100 * source.normal(3, 64), 1e-3 * source.normal(3, 64)]
    inputs.append(torch.zeros(2, 64, dtype=dtype, device=device))
    return [
        {"x": x, "weight": source.normal(x.shape[-1]), "eps": eps, "offset": offset}
        for x in inputs
        for eps, offset in ((1e-6, 0.0), (1e-5, 1.0))
    ]


def add_rms_norm(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """As `rms_norm`, rows only."""
    source = _Source(dtype, device, generator)
    return [
        {
            "x": source.normal(tokens, width),
            "residual": source.normal(tokens, width),
            "weight": source.normal(width),
            "eps": 1e-6,
            "offset": offset,
        }
        for tokens in _NUM_TOKENS
        for width in _WIDTHS
        for offset in (0.0, 1.0)
    ]


def layer_norm(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """With and without a bias."""
    source = _Source(dtype, device, generator)
    return [
        {"x": source.normal(tokens, width), "weight": source.normal(width), "bias": bias, "eps": 1e-5}
        for tokens in _NUM_TOKENS
        for width in _WIDTHS
        for bias in (None, source.normal(width))
    ]


def rope_angles(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Odd halves, with and without a factor; positions at which a float32 product is within the tolerance."""
    source = _Source(dtype, device, generator)
    exponents = {half: torch.arange(half, dtype=torch.float32) / half for half in (1, 16, 32, 50, 128)}
    return [
        {"positions": source.integers(0, 64, tokens), "frequencies": (1e4**-steps).to(device), "factor": factor}
        for tokens in _NUM_TOKENS
        for steps in exponents.values()
        for factor in (1.0, 0.7)
    ]


def rope(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Whole and partly rotated heads, both pairings, views of a stacked product; cos and sin of real angles."""
    source = _Source(dtype, device, generator)
    cases = []
    for tokens in _NUM_TOKENS:
        for head_size, half in ((64, 32), (64, 16), (80, 40), (256, 128)):
            angles = 50 * source.normal(tokens, half, dtype=torch.float32)
            for interleaved in (False, True):
                heads = source.normal(tokens, 9, head_size)
                q, k = heads[:, :6], heads[:, 6:8]
                cases.append({"q": q, "k": k, "cos": angles.cos(), "sin": angles.sin(), "interleaved": interleaved})
    return cases


def _gated(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    source = _Source(dtype, device, generator)
    cases = [{"x": source.normal(tokens, 2 * width)} for tokens in _NUM_TOKENS for width in _WIDTHS]
    return [*cases, {"x": 20 * source.normal(4, 128)}]


def silu_mul(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Odd widths and values far in both tails."""
    return _gated(dtype, device, generator)


def gelu_tanh_mul(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Odd widths and values far in both tails."""
    return _gated(dtype, device, generator)


def gelu_mul(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Odd widths and values far in both tails."""
    return _gated(dtype, device, generator)


def kv_write(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Both layouts, pages with a gap between them, slots out of order, padded tokens."""
    source = _Source(dtype, device, generator)
    cases = []
    for order in ("thd", "htd"):
        for tokens, num_heads, head_size, page in ((1, 1, 64, 16), (7, 3, 80, 4), (40, 2, 64, 16)):
            num_pages = 6
            slots = (torch.randperm((num_pages - 1) * page, generator=generator)[:tokens] + page).to(device)
            slots[1::5] = -1
            shape = (page, num_heads, head_size) if order == "thd" else (num_heads, page, head_size)
            pool = torch.zeros(num_pages, 3, *shape, dtype=dtype, device=device)
            view = KVView(pool[:, 0], pool[:, 1], KVLayout(order=order), page)
            k, v = source.normal(tokens, num_heads, head_size), source.normal(tokens, num_heads, head_size)
            cases.append({"k": k, "v": v, "kv": view, "slot_mapping": slots})
    return cases


def soft_cap(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Below, around and far above the cap."""
    source = _Source(dtype, device, generator)
    return [{"x": scale * source.normal(3, 100), "cap": cap} for scale in (0.1, 10, 200) for cap in (30.0, 50.0)]


def largest(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Odd widths, equal values of which the first counts, excluded tokens, rows that are all excluded or negative."""
    source = _Source(dtype, device, generator)
    cases = []
    for rows in _NUM_TOKENS:
        for width in (1, 5, *_WIDTHS):
            logits = source.normal(rows, width, dtype=torch.float32)
            cases.append({"logits": logits})
            cases.append({"logits": logits.round() - 20})
            masked = logits.masked_fill(logits < 0.5, -torch.inf)
            masked[0] = -torch.inf
            cases.append({"logits": masked})
    return cases


def log_softmax(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """float32 whatever the dtype; flat, peaked, and with forbidden tokens."""
    source = _Source(torch.float32 if dtype != torch.float64 else dtype, device, generator)
    masked = source.normal(3, 101)
    masked[:, ::2] = float("-inf")
    return [{"logits": scale * source.normal(rows, 101)} for rows in _NUM_TOKENS for scale in (1, 50)] + [
        {"logits": masked}
    ]


def gumbel_noise(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Seeds with all 64 bits in use, positions beyond 32 bits, ids of every lane."""
    source = _Source(dtype, device, generator)
    limit = 2**62
    cases = [
        {
            "seeds": source.integers(-limit, limit, rows),
            "positions": source.integers(0, 2**20, rows),
            "ids": source.integers(0, 262_144, rows, candidates),
        }
        for rows in _NUM_TOKENS
        for candidates in (1, 64)
    ]
    edge = {
        "seeds": torch.tensor([0, -1, 2**63 - 1, -(2**63)], device=device),
        "positions": torch.tensor([0, 2**31, 2**32 + 5, 2**40], device=device),
        "ids": torch.arange(9, device=device).repeat(4, 1),
    }
    return [*cases, edge]


def apply_token_bitmask(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> list[Case]:
    """Vocabularies that do and do not fill the last word; random, full and single-token masks."""
    source = _Source(dtype, device, generator)
    cases = []
    for vocab in (64, 101):
        words = -(-vocab // 32)
        random = source.integers(-(2**31), 2**31, 3, words, dtype=torch.int32)
        full = torch.full((3, words), -1, dtype=torch.int32, device=device)
        single = torch.zeros((3, words), dtype=torch.int32, device=device)
        single[:, words - 1] = 1
        cases += [{"logits": source.normal(3, vocab), "mask": mask} for mask in (random, full, single)]
    return cases
