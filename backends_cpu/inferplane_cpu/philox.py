"""Gumbel noise of a whole vocabulary: Philox4x32-10 with all four words of a block used; in place, row by row."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def gumbel_noise_of_vocabulary(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Noise of ids 0 … vocab - 1: seeds, positions [N] int64 give [N, vocab] float32.

    The function of (seed, position, id) is the reference's `gumbel_noise`: counter (id // 4, position low, position
    high, 0), key (seed low, seed high), word id % 4 (Salmon et al., 2011).
    """
    out = torch.empty((len(seeds), vocab), dtype=torch.float32)
    blocks = torch.arange((vocab + 3) // 4)
    words = torch.empty((len(blocks), 4), dtype=torch.int64)
    for row, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        _fill_words(words, blocks, seed, position)
        uniform = (words.view(-1)[:vocab] >> 8).double().add_(0.5).mul_(2.0**-24)
        torch.neg(uniform.log_().neg_().log_(), out=uniform)
        out[row] = uniform
    return out


def _fill_words(words: torch.Tensor, blocks: torch.Tensor, seed: int, position: int) -> None:
    """words [B, 4] int64 of counters (blocks [B], position low, position high, 0)."""
    key_0, key_1 = seed & _MASK, (seed >> 32) & _MASK
    c0, c2 = blocks.clone(), torch.full_like(blocks, (position >> 32) & _MASK)
    c1, c3 = torch.full_like(blocks, position & _MASK), torch.zeros_like(blocks)
    for _ in range(_ROUNDS):
        # Bits above the low 32 of c1 and c3 are never cleaned: the exclusive or that uses them is masked.
        product_0, product_1 = c0.mul_(_MULTIPLIERS[0]), c2.mul_(_MULTIPLIERS[1])
        next_0 = c1.bitwise_xor_(product_1 >> 32).bitwise_xor_(key_0).bitwise_and_(_MASK)
        next_2 = c3.bitwise_xor_(product_0 >> 32).bitwise_xor_(key_1).bitwise_and_(_MASK)
        c0, c1, c2, c3 = next_0, product_1, next_2, product_0
        key_0, key_1 = (key_0 + _WEYL[0]) & _MASK, (key_1 + _WEYL[1]) & _MASK
    for lane, word in enumerate((c0, c1, c2, c3)):
        words[:, lane] = word
    words.bitwise_and_(_MASK)
