"""From a number of pages to the context that fits: arithmetic on the plan, no memory is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inferplane.errors import InferplaneError
from inferplane_api.runner import Capacity

if TYPE_CHECKING:
    from inferplane.plan.types import Plan
    from inferplane_api.kv import KVGroupSpec


def pages_of_request(plan: Plan, length: int) -> int:
    """Most pages that one request of `length` tokens holds at a time, over all groups."""
    return sum(_pages_of_group(group, length, plan.limits.max_num_batched_tokens) for group in plan.geometry.groups)


def _pages_of_group(group: KVGroupSpec, length: int, max_chunk: int) -> int:
    tokens = length
    if group.window is not None:
        # The window before a chunk and the chunk itself; unaligned at both ends.
        tokens = min(length, group.window - 1 + max_chunk + group.tokens_per_page)
    return -(-tokens // group.tokens_per_page)


def fit_capacity(plan: Plan, num_pages: int) -> Capacity:
    """The longest context that fits alone, at most the plan's.

    Raises InferplaneError when the user asked for more than fits, naming both and the knobs.
    """
    usable = num_pages - 1
    wanted = plan.limits.max_model_len
    fitted = wanted if pages_of_request(plan, wanted) <= usable else _longest(plan, usable, wanted)
    if (fitted < wanted and not plan.auto_max_model_len) or fitted < 1:
        raise InferplaneError(
            f"max_model_len={wanted} needs {pages_of_request(plan, wanted)} cache pages and {usable} fit; "
            f"the longest context that fits is {fitted}",
            code="memory.context",
            remedy=f"--max-model-len {max(fitted, 1)}, a larger --kv-cache-memory-bytes, or a 16-bit --kv-cache-dtype",
        )
    tokens_per_page_of_all = sum(1 / group.tokens_per_page for group in plan.geometry.groups)
    return Capacity(
        max_model_len=fitted,
        num_pages=num_pages,
        max_num_seqs=plan.limits.max_num_seqs,
        kv_tokens=int(usable / tokens_per_page_of_all) if tokens_per_page_of_all else fitted,
        geometry=plan.geometry,
    )


def with_capacity(plan: Plan, capacity: Capacity) -> Plan:
    """The plan that the engine runs by: the same, with the context that fits."""
    limits = msgspec.structs.replace(plan.limits, max_model_len=capacity.max_model_len)
    return msgspec.structs.replace(plan, limits=limits)


def _longest(plan: Plan, usable: int, wanted: int) -> int:
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if pages_of_request(plan, middle) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
