"""Which combinations of what a backend declares are tried, at which level; knows data, runs nothing."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from inferplane_api.testing.attention_world import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inferplane_api.kv import AttentionKind
    from inferplane_api.spec import AttentionRequest, AttentionSpec, DeviceInfo

KINDS: tuple[AttentionKind, ...] = ("full", "sliding")
"""Kinds for which there is an oracle."""

HEADS = ((4, 2), (4, 4), (5, 1), (12, 2))
"""(query heads, key heads)."""

SOFTCAP = 3.0

CACHE_DTYPES = frozenset({"float32", "bfloat16", "float16"})
"""Types of cached keys and values for which there is an oracle: those without scales."""


def same_dtypes(spec: AttentionSpec) -> list[str]:
    """Types that both the activations and the cache may have."""
    return sorted(spec.dtypes & spec.kv_dtypes & CACHE_DTYPES)


def head_sizes(spec: AttentionSpec) -> list[int]:
    """The listed head sizes, or those at the boundaries of what is allowed and a few in between."""
    sizes = spec.head_sizes
    if sizes.exact:
        return sorted(sizes.exact)
    step = sizes.multiple_of
    candidates = {max(step, -(-8 // step) * step), 64, 80, 128, sizes.max or 192}
    if step == 1:
        candidates.add(33)
    return sorted(size for size in candidates if sizes.allows(size))


def page_sizes(spec: AttentionSpec) -> list[int]:
    """The listed page sizes, or the smallest, the usual and an unusual one."""
    sizes = spec.page_sizes
    if sizes.exact:
        return sorted(sizes.exact)
    return sorted(size for size in {sizes.multiple_of, 16, 3 * sizes.multiple_of, 48} if sizes.allows(size))


def points(spec: AttentionSpec) -> list[tuple[str, Point]]:
    """(level, point), every point once, at its lowest level. The first of a kind is the plain one."""
    found: dict[Point, str] = {}
    for kind in KINDS:
        if kind in spec.kinds and spec.kv_dtypes & CACHE_DTYPES:
            base = plain_point(spec, kind)
            for level, each in (("core", _core), ("performance", _performance), ("full", _full)):
                for point in each(spec, base):
                    found.setdefault(point, level)
    return [(level, point) for point, level in found.items()]


def plain_point(spec: AttentionSpec, kind: AttentionKind) -> Point:
    """The point from which the others differ: float32 where it is declared, a small head, the usual page."""
    dtype = "float32" if "float32" in spec.dtypes else sorted(spec.dtypes)[0]
    kv_dtype = dtype if dtype in spec.kv_dtypes else min(spec.kv_dtypes & CACHE_DTYPES or spec.kv_dtypes)
    page = min(page_sizes(spec), key=lambda size: abs(size - 16))
    heads = [size for size in head_sizes(spec) if size >= 16] or head_sizes(spec)
    window = 7 if kind == "sliding" else None
    return Point(kind, dtype, kv_dtype, heads[0], page, *HEADS[0], window=window, layout=spec.layouts[0])


def _core(spec: AttentionSpec, base: Point) -> Iterator[Point]:
    """One thing at a time."""
    yield base
    yield from (base._replace(head_size=size) for size in head_sizes(spec))
    yield from (base._replace(page=size) for size in page_sizes(spec))
    yield from (base._replace(num_heads=heads, num_kv_heads=kv_heads) for heads, kv_heads in HEADS)
    yield from (base._replace(layout=layout) for layout in spec.layouts)
    yield from (base._replace(dtype=dtype, kv_dtype=dtype) for dtype in same_dtypes(spec))
    yield from (base._replace(window=window) for window in _windows(base))
    yield from _features(spec, base)


def _performance(spec: AttentionSpec, base: Point) -> Iterator[Point]:
    """Pairs of the things that kernels are specialised for."""
    for layout in spec.layouts:
        yield from (
            base._replace(head_size=head, page=page, layout=layout)
            for head, page in product(head_sizes(spec), page_sizes(spec))
        )
    yield from (base._replace(page=page, window=window) for page, window in product(page_sizes(spec), _windows(base)))
    for dtype, heads in product(same_dtypes(spec), HEADS):
        yield base._replace(dtype=dtype, kv_dtype=dtype, num_heads=heads[0], num_kv_heads=heads[1])
    for dtype in same_dtypes(spec):
        yield from _features(spec, base._replace(dtype=dtype, kv_dtype=dtype))


def _full(spec: AttentionSpec, base: Point) -> Iterator[Point]:
    """Everything with everything that may interact, and caches of another type."""
    # A window of one token, and one that hides nothing, were tried with every page.
    for head, heads, window in product(head_sizes(spec), HEADS, sorted({7, base.page}) if base.window else [None]):
        yield base._replace(head_size=head, num_heads=heads[0], num_kv_heads=heads[1], window=window)
    for dtype, kv_dtype in product(sorted(spec.dtypes), sorted(spec.kv_dtypes & CACHE_DTYPES)):
        yield base._replace(dtype=dtype, kv_dtype=kv_dtype)
    for head, page in product(head_sizes(spec), page_sizes(spec)):
        yield from _features(spec, base._replace(head_size=head, page=page))


def _windows(base: Point) -> list[int | None]:
    return [1, 7, base.page, 500] if base.kind == "sliding" else [None]


def _features(spec: AttentionSpec, base: Point) -> Iterator[Point]:
    if "softcap" in spec.features:
        yield base._replace(softcap=SOFTCAP)
    if "logsumexp" in spec.features:
        yield base._replace(lse=True)


def request_of(point: Point, platform: str, device: DeviceInfo) -> AttentionRequest:
    """What core would ask for a point."""
    from inferplane_api.spec import AttentionRequest

    features = {"softcap"} if point.softcap is not None else set()
    features |= {"logsumexp"} if point.lse else set()
    return AttentionRequest(
        platform=platform,
        device=device,
        kind=point.kind,
        num_heads=point.num_heads,
        num_kv_heads=point.num_kv_heads,
        head_size=point.head_size,
        dtype=point.dtype,
        kv_dtype=point.kv_dtype,
        page_size=point.page,
        window=point.window,
        features=frozenset(features),
    )
