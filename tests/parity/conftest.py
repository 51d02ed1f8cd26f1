"""Runs one of our models on one request through paged key-value memory, with the reference platform pieces only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from inferplane.checkpoint.model_spec import model_spec
from inferplane.layers.context import ModelContext
from inferplane.layers.linear import LinearFactory
from inferplane.layers.ops import bind_ops
from inferplane.models.registry import MODELS
from inferplane_api.attention import AttentionContext
from inferplane_api.batch import AttentionBatch, StepBatch
from inferplane_api.kv import KVGroupSpec, KVLayout, KVView
from inferplane_api.model import LayerSpec
from inferplane_api.quant import DENSE, QuantScheme, Weight
from inferplane_api.reference.attention import PagedAttention

PAGE = 4
"""Tokens per page: small, so that every test crosses page borders."""


class StateDictCheckpoint:
    """A checkpoint out of a dictionary of tensors, as `state_dict()` gives it."""

    def __init__(self, tensors: dict[str, torch.Tensor], schemes: dict[str, QuantScheme] | None = None) -> None:
        self.tensors = tensors
        self.schemes = schemes or {}

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def weight(self, name: str) -> Weight:
        data = self.tensors[name]
        scheme = self.schemes.get(name, DENSE)
        return Weight(scheme, (data.shape[0], data.shape[1]), data, data.to)

    def close(self) -> None:
        pass


class DequantizingKernel:
    """The plainest linear kernel: one dense matrix, torch's own product."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        return torch.cat([w.dequantize(self._dtype) for w in weights]).to(self._device)

    def apply(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, packed, bias)


class PagedHarness:
    """A model, its cache and one request. Pages are handed out in a scattered order, page 0 stays empty."""

    def __init__(
        self, config: dict[str, Any], tensors: dict[str, torch.Tensor], *, dtype: torch.dtype, max_tokens: int = 128
    ) -> None:
        self.spec = model_spec(config)
        device = torch.device("cpu")
        num_pages = -(-max_tokens // PAGE)
        self.kinds: dict[LayerSpec, PagedAttention] = {}
        layouts = (KVLayout(order="thd"), KVLayout(order="htd"))
        self.kv: list[KVView] = []
        for index, layer in enumerate(self.spec.layers):
            layout = layouts[index % 2]
            shape = (PAGE, layer.num_kv_heads) if layout.order == "thd" else (layer.num_kv_heads, PAGE)
            # Unwritten memory is NaN: whatever reads a slot that no token was written to is found out
            k, v = (torch.full((num_pages + 1, *shape, layer.head_size), float("nan"), dtype=dtype) for _ in "kv")
            k[0], v[0] = 0, 0
            self.kv.append(KVView(k, v, layout, PAGE))
            if layer not in self.kinds:
                self.kinds[layer] = PagedAttention(_attention_context(layer, dtype, device, max_tokens, num_pages))
        reference = DequantizingKernel(device, dtype)
        self.announcements: list[str] = []
        context = ModelContext(
            config=config,
            spec=self.spec,
            ops=bind_ops((), lambda component: None),
            linear=LinearFactory({}, reference, self.announcements.append),
            attention=[self.kinds[layer] for layer in self.spec.layers],
            dtype=dtype,
            device=device,
        )
        module, _, name = MODELS[self.spec.model_type].partition(":")
        self.model = getattr(import_module(module), name)(context)
        self.model.load(StateDictCheckpoint(tensors))
        order = np.random.default_rng(0).permutation(num_pages) + 1
        self.page_table = torch.from_numpy(order.astype(np.int32))[None]
        self.num_computed = 0

    def forward(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Compute the next tokens of the request; their logits, [T, vocab]."""
        start, end = self.num_computed, self.num_computed + len(token_ids)
        positions = torch.arange(start, end)
        slots = self.page_table[0, positions // PAGE].long() * PAGE + positions % PAGE
        query_start, seq_lens = np.array([0, end - start], np.int32), np.array([end], np.int32)
        batch = AttentionBatch(
            query_start=torch.from_numpy(query_start),
            seq_lens=torch.from_numpy(seq_lens),
            page_table=self.page_table,
            slot_mapping=slots,
            query_start_host=query_start,
            seq_lens_host=seq_lens,
            num_decode_rows=int(end - start == 1),
            max_query_len=end - start,
            max_seq_len=end,
        )
        for attention in self.kinds.values():
            attention.plan(batch)
        self.num_computed = end
        hidden = self.model.forward(StepBatch(torch.tensor(list(token_ids)), positions, self.kv))
        assert hidden.shape == (end - start, self.spec.hidden_size)
        logits = self.model.logits(hidden)
        assert logits.dtype == torch.float32
        return logits


def _attention_context(
    layer: LayerSpec, dtype: torch.dtype, device: torch.device, max_tokens: int, num_pages: int
) -> AttentionContext:
    group = KVGroupSpec(
        index=0,
        kind=layer.kind,
        layers=(0,),
        tokens_per_page=PAGE,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        dtype="float32",
        window=layer.window,
    )
    scale = layer.head_size**-0.5 if layer.scale is None else layer.scale
    return AttentionContext(
        group, layer.num_heads, scale, dtype, device, max_tokens, 1, num_pages, softcap=layer.softcap
    )


@pytest.fixture
def paged_harness() -> Callable[..., PagedHarness]:
    """Builds a harness: (config, tensors, dtype=torch.float32)."""

    def build(
        config: dict[str, Any], tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32
    ) -> PagedHarness:
        return PagedHarness(config, tensors, dtype=dtype)

    return build


@pytest.fixture
def state_dict_checkpoint() -> type[StateDictCheckpoint]:
    """The checkpoint class: (tensors, schemes={name: QuantScheme})."""
    return StateDictCheckpoint


@pytest.fixture
def dequantizing_kernel() -> type[DequantizingKernel]:
    """The plainest linear kernel class: (device, dtype)."""
    return DequantizingKernel
