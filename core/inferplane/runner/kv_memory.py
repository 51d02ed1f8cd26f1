"""Sizes, allocates and slices the KV pool from measured memory; knows nothing about who owns a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from inferplane.errors import InferplaneError
from inferplane.plan.capacity import pages_of_request
from inferplane.runner.step_shapes import StepShapes
from inferplane_api.kv import KVView

if TYPE_CHECKING:
    from inferplane.plan.types import Plan
    from inferplane_api.kv import KVGeometry, KVGroupSpec
    from inferplane_api.model import ModelSpec
    from inferplane_api.runner import RunnerLimits

LOGIT_COPIES = 5
"""float32 copies of a step's logits that the sampler may hold at a time."""

SORTED_LOGIT_BYTES = 24
"""Bytes per logit of an ordering pass over the whole vocabulary: keys, sorted keys and their indices, int64 each."""


class MemoryRow(NamedTuple):
    """One line of the memory table."""

    name: str
    num_bytes: int
    note: str


class MemoryPlan(NamedTuple):
    """How many pages the pool gets, and the table that explains it."""

    num_pages: int
    """Null page included."""
    table: tuple[MemoryRow, ...]


def _useful_pages(plan: Plan) -> int:
    """Pages that `max_num_seqs` requests of the longest context hold at a time, with whole chunks beside windows."""
    limits = plan.limits
    of_request = 0
    for group in plan.geometry.groups:
        tokens = limits.max_model_len
        if group.window is not None:
            # The window before a chunk and the chunk itself; unaligned at both ends.
            tokens = min(tokens, group.window - 1 + limits.max_num_batched_tokens + group.tokens_per_page)
        of_request += -(-tokens // group.tokens_per_page)
    return limits.max_num_seqs * of_request


def workspace_bytes(model: ModelSpec, limits: RunnerLimits, itemsize: int, *, logits: bool = True) -> int:
    """An estimate of the largest step's activations, and of its logits where the model has any."""
    widest = max((layer.num_heads + 2 * layer.num_kv_heads) * layer.head_size for layer in model.layers)
    per_token = (6 * model.hidden_size + 3 * model.intermediate_size + 3 * widest) * itemsize
    sampling = limits.max_num_seqs * model.vocab_size * (4 * LOGIT_COPIES + SORTED_LOGIT_BYTES)
    return limits.max_num_batched_tokens * per_token + (sampling if logits else 0)


def plan_memory(plan: Plan, free: int, max_pages: int | None, weights: int, itemsize: int) -> MemoryPlan:
    """Fit the pool into `free` bytes, measured after the weights were read.

    At most `max_pages`, and never more than `max_num_seqs` requests of the longest context could use. Raises
    InferplaneError naming the knobs when not one request fits (of `max_model_len` tokens when the user asked for that
    length, otherwise of one page per group).
    """
    geometry, limits = plan.geometry, plan.limits
    if not geometry.groups:
        return _without_cache(plan, free, weights, itemsize)
    workspace = workspace_bytes(plan.model, StepShapes(plan.scheduling).padded(limits), itemsize)
    budget = int(free * plan.memory_utilization) - workspace
    if plan.memory_limit_bytes is not None:
        budget = min(plan.memory_limit_bytes, free - workspace)
    num_pages = min(max(0, budget) // geometry.page_bytes, _useful_pages(plan) + 1)
    if max_pages is not None:
        num_pages = min(num_pages, max_pages)
    chunking = "no_chunking" not in plan.model.features
    shortest = 1 if plan.auto_max_model_len else limits.max_model_len
    needed = 1 + pages_of_request(geometry, shortest, chunking)
    if num_pages < needed:
        limited = max_pages is not None and num_pages == max_pages
        raise _does_not_fit(plan, num_pages, needed, (free, workspace), limited=limited)
    pool = num_pages * geometry.page_bytes
    table = (
        MemoryRow("weights", weights, f"{plan.model.model_type}, {plan.dtype}"),
        MemoryRow(
            "work space", workspace, f"{limits.max_num_batched_tokens} tokens a step, {limits.max_num_seqs} sequences"
        ),
        MemoryRow("KV cache", pool, f"{num_pages} pages of {geometry.page_bytes} bytes"),
        MemoryRow("free", max(0, free - workspace - pool), f"of {free} bytes measured before the cache"),
    )
    return MemoryPlan(num_pages, table)


def _without_cache(plan: Plan, free: int, weights: int, itemsize: int) -> MemoryPlan:
    """A model whose layers keep nothing: the null page alone, of no bytes."""
    workspace = workspace_bytes(plan.model, StepShapes(plan.scheduling).padded(plan.limits), itemsize, logits=False)
    if workspace > free:
        raise InferplaneError(
            f"a step of {plan.limits.max_num_batched_tokens} tokens needs {workspace / 2**20:.1f} MiB of work space, "
            f"and {free / 2**20:.1f} MiB are free",
            code="memory.workspace",
            remedy="lower --max-num-batched-tokens, or --max-model-len with it, or free memory",
        )
    table = (
        MemoryRow("weights", weights, f"{plan.model.model_type}, {plan.dtype}"),
        MemoryRow("work space", workspace, f"{plan.limits.max_num_batched_tokens} tokens a step"),
        MemoryRow("free", free - workspace, f"of {free} bytes measured; there is no cache"),
    )
    return MemoryPlan(1, table)


def _does_not_fit(
    plan: Plan, num_pages: int, needed: int, measured: tuple[int, int], *, limited: bool
) -> InferplaneError:
    free, workspace = measured
    page_bytes = plan.geometry.page_bytes
    length = "one page per KV group" if plan.auto_max_model_len else f"max_model_len={plan.limits.max_model_len}"
    if limited:
        remedy = "raise --num-pages-override or lower --max-model-len"
    else:
        remedy = (
            "lower --max-model-len, --max-num-batched-tokens or --max-num-seqs, raise --memory-utilization "
            "or --kv-cache-memory-bytes, or free memory"
        )
    return InferplaneError(
        f"the KV cache does not hold one request: {length} needs {needed * page_bytes / 2**20:.1f} MiB "
        f"({needed} pages of {page_bytes} bytes, the null page included), there is room for {max(0, num_pages)} pages "
        f"({free / 2**20:.1f} MiB free, of which {workspace / 2**20:.1f} MiB is work space)",
        code="memory.kv_cache",
        remedy=remedy,
    )


def allocate_pool(num_pages: int, page_bytes: int, device: torch.device) -> torch.Tensor:
    """[num_pages, page_bytes] uint8 of zeros. On the host, memory is mapped only when a page is first touched."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros((num_pages, page_bytes), np.uint8))
    return torch.zeros((num_pages, page_bytes), dtype=torch.uint8, device=device)


def kv_views(pool: torch.Tensor, geometry: KVGeometry, num_layers: int) -> tuple[KVView, ...]:
    """Per model layer, views into the pool: in a group's page lie its layers one after the other, k then v of each.

    None where no layer keeps anything. Raises InferplaneError when only some layers belong to no group, or the layers
    do not fit the page.
    """
    if not geometry.groups:
        return ()
    views: list[KVView | None] = [None] * num_layers
    for group in geometry.groups:
        for layer, view in zip(group.layers, _group_views(pool, group), strict=True):
            views[layer] = view
    missing = [index for index, view in enumerate(views) if view is None]
    if missing:
        raise InferplaneError(f"layers {missing} belong to no KV group", code="kv.geometry")
    return tuple(view for view in views if view is not None)


def _group_views(pool: torch.Tensor, group: KVGroupSpec) -> list[KVView]:
    elements = pool.view(getattr(torch, group.dtype))
    num_pages, page_elements = elements.shape
    tokens, heads, size = group.tokens_per_page, group.num_kv_heads, group.head_size
    inner = (tokens, heads, size) if group.layout.order == "thd" else (heads, tokens, size)
    plane = tokens * heads * size
    if 2 * plane * len(group.layers) > page_elements:
        raise InferplaneError(
            f"KV group {group.index} needs {2 * plane * len(group.layers)} elements a page, a page has {page_elements}",
            code="kv.geometry",
        )
    strides = (page_elements, inner[1] * inner[2], inner[2], 1)
    planes = [
        elements.as_strided((num_pages, *inner), strides, plane * index) for index in range(2 * len(group.layers))
    ]
    return [
        KVView(k=planes[2 * index], v=planes[2 * index + 1], layout=group.layout, tokens_per_page=tokens)
        for index in range(len(group.layers))
    ]
