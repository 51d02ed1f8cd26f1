"""Log-probabilities of given tokens and of the most likely ones, from raw logits; knows no request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from inferplane.runner.candidates import ordered_top_k
from inferplane_api.step import TokenLogprobs

if TYPE_CHECKING:
    import numpy.typing as npt

ALL = -1
"""Number of reported tokens that means the whole vocabulary."""


class LogSoftmax(Protocol):
    """The op `log_softmax`: [N, V] float32 to the same."""

    def __call__(self, logits: torch.Tensor, /) -> torch.Tensor: ...


class LogprobBlock(NamedTuple):
    """N positions on the device, in batch order."""

    token_ids: torch.Tensor
    """[N] int64."""
    logprobs: torch.Tensor
    """[N]."""
    ranks: torch.Tensor
    """[N] int64, 1 is the most likely; a tie counts for both."""
    top_ids: torch.Tensor
    """[N, K] int64 in descending order of likelihood, equal ones by id."""
    top_logprobs: torch.Tensor
    """[N, K]."""
    num_top: npt.NDArray[np.int64]
    """[N], entries of the row that were asked for."""
    listed: Listed | None = None
    """Tokens that were named, where any row named some."""


class Listed(NamedTuple):
    """Tokens whose log-probabilities are reported beside the most likely ones."""

    ids: list[list[int]]
    """Per row, as many as were named."""
    logprobs: torch.Tensor
    """[N, L] on the device, L of the row that names most."""


def token_logprobs(
    log_softmax: LogSoftmax,
    logits: torch.Tensor,
    tokens: torch.Tensor,
    num_top: npt.NDArray[np.int64],
    *,
    as_logits: npt.NDArray[np.bool_] | None = None,
    listed: list[list[int]] | None = None,
) -> LogprobBlock:
    """logits [N, V] float32, tokens [N] int64, num_top [N] with ALL for the whole vocabulary.

    as_logits [N]: rows that report their logits as they are. listed: per row, ids to report too.
    """
    vocab = logits.shape[-1]
    logprobs = log_softmax(logits)
    if as_logits is not None and as_logits.any():
        whole = torch.from_numpy(as_logits).to(logits.device)
        logprobs = torch.where(whole[:, None], logits, logprobs)
    chosen = logprobs.gather(-1, tokens[:, None])
    widths = np.where(num_top == ALL, vocab, np.minimum(num_top, vocab))
    _, top_ids = ordered_top_k(logits, int(widths.max(initial=0)))
    return LogprobBlock(
        token_ids=tokens,
        logprobs=chosen[:, 0],
        ranks=(logprobs > chosen).sum(-1) + 1,
        top_ids=top_ids,
        top_logprobs=logprobs.gather(-1, top_ids),
        num_top=widths,
        listed=None if listed is None else _listed(logprobs, listed),
    )


def _listed(logprobs: torch.Tensor, ids: list[list[int]]) -> Listed:
    padded = np.zeros((len(ids), max(map(len, ids))), np.int64)
    for row, some in enumerate(ids):
        padded[row, : len(some)] = some
    return Listed(ids, logprobs.gather(-1, torch.from_numpy(padded).to(logprobs.device)))


def read_logprobs(block: LogprobBlock) -> list[TokenLogprobs]:
    """Wait for the block and give one record a position."""
    columns = (block.token_ids, block.logprobs, block.ranks, block.top_ids, block.top_logprobs)
    ids, logprobs, ranks, top_ids, top_logprobs = (column.tolist() for column in columns)
    records = [
        TokenLogprobs(
            token_id=ids[row],
            logprob=logprobs[row],
            rank=ranks[row],
            top_ids=top_ids[row][:width],
            top_logprobs=top_logprobs[row][:width],
        )
        for row, width in enumerate(block.num_top.tolist())
    ]
    if block.listed is not None:
        for record, some, values in zip(records, block.listed.ids, block.listed.logprobs.tolist(), strict=True):
            record.listed_ids, record.listed_logprobs = some, values[: len(some)]
    return records
