"""Attention inside the rows of one step, in both directions, without a cache; over torch, so on any device that it has.

Rows have different lengths. The model sorts a step's tokens once so that rows of one length stand together, and each
length is one call: nothing is padded, and short rows are not computed one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    import numpy.typing as npt

    from inferplane.layers.context import ModelContext
    from inferplane_api.batch import StepBatch


class RowGroup(NamedTuple):
    """`num_rows` rows of `length` tokens each, one after the other from token `first` on."""

    first: int
    num_rows: int
    length: int


class SortedRows(NamedTuple):
    """A step's T tokens with rows of one length next to each other; padded tokens stay behind."""

    groups: tuple[RowGroup, ...]
    order: torch.Tensor | None
    """[T] int64: which token comes where; None: they stand so already."""
    inverse: torch.Tensor | None

    def sort(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, ...] as the step has it, in this order."""
        return x if self.order is None else x.index_select(0, self.order)

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, ...] in this order, as the step has it."""
        return x if self.inverse is None else x.index_select(0, self.inverse)


def sort_rows(batch: StepBatch) -> SortedRows:
    """The rows of a step by length."""
    query_start = batch.query_start_host
    assert query_start is not None, "a model with encoder layers runs no captured steps"
    num_tokens, device = len(batch.input_ids), batch.input_ids.device
    lengths = np.diff(query_start)
    by_length = np.argsort(lengths, kind="stable")
    sizes, counts = np.unique(lengths, return_counts=True)
    firsts = np.concatenate(([0], np.cumsum(sizes * counts)[:-1]))
    groups = tuple(
        RowGroup(int(first), int(count), int(size))
        for first, count, size in zip(firsts, counts, sizes, strict=True)
        if size
    )
    if (by_length == np.arange(len(by_length))).all():
        return SortedRows(groups, None, None)
    padding = np.arange(query_start[-1], num_tokens)
    order = np.concatenate([*(np.arange(query_start[row], query_start[row + 1]) for row in by_length), padding])
    inverse = np.empty_like(order)
    inverse[order] = np.arange(num_tokens)
    return SortedRows(groups, _upload(order, device), _upload(inverse, device))


def _upload(array: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


class EncoderAttention:
    """Multi-head attention of model layer `index`: every token sees all tokens of its row."""

    def __init__(self, context: ModelContext, index: int) -> None:
        layer = context.spec.layers[index]
        self._num_heads = layer.num_heads
        self._head_size = layer.head_size
        self._scale = layer.head_size**-0.5 if layer.scale is None else layer.scale

    def __call__(self, qkv: torch.Tensor, rows: SortedRows) -> torch.Tensor:
        """qkv [T, 3 * H * D], tokens sorted, gives [T, H * D]; zeros for padded tokens."""
        outputs = [self._attend(qkv, group) for group in rows.groups]
        num_padded = len(qkv) - sum(group.num_rows * group.length for group in rows.groups)
        if num_padded:
            outputs.append(qkv.new_zeros((num_padded, self._num_heads * self._head_size)))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, qkv: torch.Tensor, group: RowGroup) -> torch.Tensor:
        tokens = qkv[group.first : group.first + group.num_rows * group.length]
        heads = tokens.view(group.num_rows, group.length, 3, self._num_heads, self._head_size)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, scale=self._scale)
        return attended.transpose(1, 2).reshape(len(tokens), -1)
