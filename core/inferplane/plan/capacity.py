"""From a number of pages to the context that fits: arithmetic on the plan, no memory is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.errors import InferplaneError
from inferplane_api.runner import Capacity

if TYPE_CHECKING:
    from inferplane.plan.types import Plan
    from inferplane_api.kv import KVGeometry, KVGroupSpec


def pages_of_group(group: KVGroupSpec, length: int, chunking: bool = True) -> int:
    """Most pages of one group that a request of `length` tokens must hold at a time to make progress.

    A window that starts anywhere in a page touches ceil((window - 1) / page) + 1 pages; chunks shrink to what is free.
    A prompt that may not be cut into chunks needs all of its pages in one step, windows or not.
    """
    size = group.tokens_per_page
    pages = -(-length // size)
    if group.window is None or not chunking:
        return pages
    return min(pages, -(-(group.window - 1) // size) + 1)


def pages_of_request(geometry: KVGeometry, length: int, chunking: bool = True) -> int:
    """Pages that a request of `length` tokens needs when it runs alone."""
    return sum(pages_of_group(group, length, chunking) for group in geometry.groups)


def fit_capacity(plan: Plan, num_pages: int) -> Capacity:
    """The longest context that fits alone, at most the plan's.

    Raises InferplaneError when the user asked for more than fits, naming both and the knobs.
    """
    usable = num_pages - 1
    wanted = plan.limits.max_model_len
    chunking = "no_chunking" not in plan.model.features
    fitted = _longest(plan.geometry, usable, wanted, chunking)
    if (fitted < wanted and not plan.auto_max_model_len) or fitted < 1:
        need = pages_of_request(plan.geometry, wanted, chunking)
        raise InferplaneError(
            f"max_model_len={wanted} needs {need} cache pages and {usable} fit; "
            f"the longest context that fits is {fitted}",
            code="memory.context",
            remedy=f"--max-model-len {max(fitted, 1)}, a larger --kv-cache-memory-bytes, or a 16-bit --kv-cache-dtype",
        )
    return Capacity(
        max_model_len=fitted,
        num_pages=num_pages,
        max_num_seqs=plan.limits.max_num_seqs,
        kv_tokens=usable * fitted // (pages_of_request(plan.geometry, fitted, chunking) or 1),
        geometry=plan.geometry,
    )


def _longest(geometry: KVGeometry, usable: int, wanted: int, chunking: bool) -> int:
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if pages_of_request(geometry, middle, chunking) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
