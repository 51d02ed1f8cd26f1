"""One layer's attention: hands queries, keys and values to the backend of the layer's KV group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from inferplane.layers.context import ModelContext
    from inferplane_api.kv import KVView


class Attention:
    """Attention of model layer `index` over paged keys and values."""

    def __init__(self, context: ModelContext, index: int) -> None:
        self.index = index
        layer = context.spec.layers[index]
        self._num_heads = layer.num_heads
        self._num_kv_heads = layer.num_kv_heads
        self._head_size = layer.head_size
        self._backend = context.attention[index]

    def split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[T, (H + 2 K) * D] gives q [T, H, D], k [T, K, D] and v [T, K, D], views."""
        heads = qkv.reshape(qkv.shape[0], -1, self._head_size)
        q, k, v = torch.split(heads, [self._num_heads, self._num_kv_heads, self._num_kv_heads], dim=-2)
        return q, k, v

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KVView) -> torch.Tensor:
        """q [T, H, D], k and v [T, K, D] give [T, H * D]; k and v are written to the layer's cache `kv`."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._backend.run(q, k, v, kv, out)
        return out.flatten(-2)
