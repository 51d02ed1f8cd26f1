"""What an attention backend supplies: `plan` once a step, `run` once a layer; core owns the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from inferplane_api.batch import AttentionBatch
    from inferplane_api.kv import KVGroupSpec, KVView


class AttentionContext(NamedTuple):
    """What a backend is constructed with, once per KV group."""

    group: KVGroupSpec
    num_heads: int
    scale: float
    """Multiplies q·k before the softmax."""
    dtype: torch.dtype
    """Of q, k, v and out."""
    device: torch.device
    max_tokens: int
    """Most tokens of a step."""
    max_requests: int
    """Most rows of a step."""
    max_pages: int
    """Most page-table entries of a row."""
    softcap: float | None = None


class KVScales(NamedTuple):
    """Factors of a quantized cache: cached value * scale = value."""

    k: float
    v: float


@runtime_checkable
class PagedAttention(Protocol):
    """Softmax attention over paged keys and values (kinds full, sliding, chunked, cross).

    Causal: token i of a row with query length Q and sequence length S has position S - Q + i and sees positions
    up to its own; with a window W it sees the last W of those. A row's query length may exceed 1 in a decode bucket.
    """

    def __init__(self, context: AttentionContext) -> None:
        """Raises Unsupported for a window or a softcap that it would ignore, as `run` does for lse and scales."""

    def plan(self, batch: AttentionBatch) -> None:
        """Prepare one step, shared by all layers of the group. Writes into address-stable buffers."""

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        kv: KVView,
        out: torch.Tensor,
        *,
        lse: torch.Tensor | None = None,
        scales: KVScales | None = None,
    ) -> None:
        """Write the step's k and v into the cache, then attend; the result goes to `out`.

        q, out: [T, num_heads, head_size]; k, v: [T, num_kv_heads, head_size] or None when another layer wrote them.
        Every row's k and v are written before any row's pages are read: a row may hit pages that another row of the
        same step fills. lse, when given: [T, num_heads] float32, natural log of the softmax denominator.
        """


@runtime_checkable
class LatentAttention(Protocol):
    """Attention over a compressed latent plus a rotary part (MLA), in prefill and absorbed decode form."""

    def __init__(self, context: AttentionContext) -> None: ...

    def plan(self, batch: AttentionBatch) -> None:
        """As `PagedAttention.plan`."""

    def run(
        self,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor | None,
        k_rope: torch.Tensor | None,
        kv: KVView,
        out: torch.Tensor,
    ) -> None:
        """q_latent [T, H, latent], q_rope [T, H, rope], latent [T, latent], k_rope [T, rope], out [T, H, latent]."""


@runtime_checkable
class StateMixer(Protocol):
    """Convolution and scan over a recurrent state slot (Mamba, gated delta net)."""

    def __init__(self, context: AttentionContext) -> None: ...

    def plan(self, batch: AttentionBatch) -> None:
        """As `PagedAttention.plan`; page_table[:, 0] is the state slot."""

    def run(self, x: torch.Tensor, kv: KVView, out: torch.Tensor) -> None:
        """x, out: [T, channels]."""
