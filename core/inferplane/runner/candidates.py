"""Which tokens may be drawn: ordered top-k, min_p and nucleus sets; knows no request and draws nothing."""

from __future__ import annotations

import torch

_LOW_BITS = 32


def ordered_top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row in descending order, equal ones by ascending id: (values [N, k], ids [N, k] int64).

    logits: [N, V] float32. Selection runs on unique integers, so that ties are decided by the id and not by the size
    of the batch or of k: the float's bits as an ordered integer (sign-magnitude turned into two's complement) above,
    the reversed id below. NaN counts as the largest value.
    """
    vocab = logits.shape[-1]
    k = min(k, vocab)
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    reversed_ids = torch.arange(vocab - 1, -1, -1, device=logits.device)
    keys = (ordered.to(torch.int64) << _LOW_BITS) | reversed_ids
    top = torch.topk(keys, k, dim=-1).values if k < vocab else torch.sort(keys, dim=-1, descending=True).values
    ids = (vocab - 1) - (top & ((1 << _LOW_BITS) - 1))
    return logits.gather(-1, ids), ids


def min_p_floor(maximum: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """The smallest logit that min_p keeps: p >= min_p * p_max. maximum, min_p: [N]; 0 keeps everything."""
    return maximum + torch.log(min_p)


def nucleus(values: torch.Tensor, top_p: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    """Which candidates are in the nucleus: the shortest prefix whose probability reaches top_p.

    values [N, K] descending, -inf where already excluded; top_p [N], 1 or more keeps all. `total` [N] is the sum of
    exp(logit - largest logit) over everything that is kept so far; None: over `values`. Sums run from the largest to
    the smallest, so that padding a row with excluded candidates changes no bit.
    """
    weights = torch.exp(values - values[:, :1])
    sums = torch.cumsum(weights, dim=-1)
    before = torch.nn.functional.pad(sums, (1, 0))[:, :-1]
    whole = sums[:, -1] if total is None else total
    return (before < (top_p * whole)[:, None]) | (top_p >= 1.0)[:, None]
