"""Rows of every length against softmax written out in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.layers.encoder_attention import EncoderAttention, RowGroup, sort_rows
from inferplane_api.batch import StepBatch
from inferplane_api.model import LayerSpec

HEADS, SIZE = 3, 4


def batch_of(lengths: list[int], padding: int = 0) -> StepBatch:
    query_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = torch.arange(int(query_start[-1]) + padding)
    return StepBatch(input_ids=ids, positions=ids, kv=(), query_start_host=query_start)


def layer(scale: float | None = None) -> EncoderAttention:
    spec = LayerSpec(kind="encoder", num_heads=HEADS, num_kv_heads=HEADS, head_size=SIZE, scale=scale)
    context: Any = SimpleNamespace(spec=SimpleNamespace(layers=(spec,)))
    return EncoderAttention(context, 0)


def truth(qkv: torch.Tensor, lengths: list[int], scale: float) -> np.ndarray[Any, Any]:
    outputs, first = [], 0
    for length in lengths:
        q, k, v = qkv[first : first + length].double().numpy().reshape(length, 3, HEADS, SIZE).transpose(1, 2, 0, 3)
        scores = np.einsum("hqd,hkd->hqk", q, k) * scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        outputs.append(np.einsum("hqk,hkd->qhd", weights, v).reshape(length, -1))
        first += length
    return np.concatenate(outputs)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=8), padding=st.integers(0, 3))
def test_every_token_sees_its_row_and_nothing_else(lengths: list[int], padding: int) -> None:
    batch = batch_of(lengths, padding)
    qkv = torch.randn(len(batch.input_ids), 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(1))
    if padding:
        qkv[-padding:] = float("nan")
    rows = sort_rows(batch)
    found = rows.restore(layer()(rows.sort(qkv), rows))
    num_real = sum(lengths)
    assert found[:num_real].numpy() == pytest.approx(truth(qkv, lengths, SIZE**-0.5), rel=1e-5, abs=1e-5)
    assert (found[num_real:] == 0).all()


def test_the_layers_own_scale_is_used() -> None:
    batch = batch_of([5])
    qkv = torch.randn(5, 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(2))
    found = layer(scale=0.3)(qkv, sort_rows(batch))
    assert found.numpy() == pytest.approx(truth(qkv, [5], 0.3), rel=1e-5, abs=1e-5)


def test_rows_of_one_length_are_one_call() -> None:
    rows = sort_rows(batch_of([4, 2, 4, 4, 2]))
    assert rows.groups == (RowGroup(0, 2, 2), RowGroup(4, 3, 4))
    tokens = torch.arange(16)
    assert rows.sort(tokens).tolist() == [4, 5, 14, 15, 0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13]
    assert rows.restore(rows.sort(tokens)).tolist() == tokens.tolist()


def test_sorted_rows_are_not_moved() -> None:
    rows = sort_rows(batch_of([2, 2, 5]))
    tokens = torch.arange(9)
    assert rows.sort(tokens) is tokens
    assert rows.restore(tokens) is tokens
