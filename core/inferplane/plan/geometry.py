"""Pages of the key-value cache: one pool of equal-byte pages, and how many tokens of each group of layers fit in one.

Knows no memory sizes of a device: how many pages there are is measured later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from inferplane.errors import InvalidValue
from inferplane_api.kv import AttentionKind, KVGeometry, KVGroupSpec, KVLayout
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.spec import PageSizes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

DEFAULT_BLOCK_SIZE = 16
_LARGEST_BLOCK_SIZE = 1024

WASTE_WARNING = 0.10
"""Share of a page that may be left over before it is worth a warning."""


class LayerGroup(NamedTuple):
    """Layers that can share a page table and an attention backend."""

    kind: AttentionKind
    layers: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_size: int
    window: int | None
    features: frozenset[str]
    """Of any of the layers."""
    apart: str = ""
    """What sets it apart from another group of the same kind, window and number of layers, "head_size 64"."""

    @property
    def label(self) -> str:
        """ "sliding(512) x15"; of no other group."""
        return f"{self._alike} ({self.apart})" if self.apart else self._alike

    @property
    def _alike(self) -> str:
        window = f"({self.window})" if self.window is not None else ""
        return f"{self.kind}{window} x{len(self.layers)}"

    def bytes_per_token(self, kv_dtype: str) -> int:
        """Keys and values of one token in all layers of the group."""
        return 2 * self.num_kv_heads * self.head_size * DTYPE_BYTES[kv_dtype] * len(self.layers)


def layer_groups(model: ModelSpec) -> tuple[LayerGroup, ...]:
    """Layers grouped by everything that a page table and a backend are made for, in order of each first layer.

    Layers of kind "encoder" keep no keys and values: they are in no group."""
    members: dict[tuple[object, ...], list[int]] = {}
    for index, layer in enumerate(model.layers):
        if layer.kind != "encoder":
            members.setdefault(_key(layer), []).append(index)
    groups = []
    for layers in members.values():
        first = model.layers[layers[0]]
        groups.append(
            LayerGroup(
                kind=first.kind,
                layers=tuple(layers),
                num_heads=first.num_heads,
                num_kv_heads=first.num_kv_heads,
                head_size=first.head_size,
                window=first.window,
                features=frozenset().union(*(model.layers[index].features for index in layers)),
            )
        )
    return tuple(group._replace(apart=_apart(group, groups, model)) for group in groups)


def _apart(group: LayerGroup, groups: Sequence[LayerGroup], model: ModelSpec) -> str:
    """The fields in which groups of one label differ; they do, being groups."""
    alike = [model.layers[other.layers[0]] for other in groups if other.label == group.label]
    first = model.layers[group.layers[0]]
    fields = ("num_heads", "num_kv_heads", "head_size", "scale", "softcap")
    differing = [name for name in fields if len({getattr(layer, name) for layer in alike}) > 1]
    return ", ".join(f"{name} {getattr(first, name)}" for name in differing)


def kv_geometry(
    model: ModelSpec,
    kv_dtype: str,
    block_size: int,
    page_sizes: Sequence[PageSizes],
    layouts: Sequence[KVLayout] = (),
) -> KVGeometry:
    """Pages for `block_size` tokens of the group that needs the most bytes a token; others hold more tokens a page.

    A page has the bytes of block_size tokens of the largest group; another group's tokens_per_page is the largest
    multiple of block_size that fits and that its backend takes. `page_sizes`, and `layouts` where given, are per group
    as `layer_groups` orders them. Raises InvalidValue when a backend takes no size that fits.
    """
    groups = layer_groups(model)
    page_bytes = page_bytes_for(groups, kv_dtype, block_size)
    specs = []
    for index, (group, sizes) in enumerate(zip(groups, page_sizes, strict=True)):
        tokens = tokens_per_page(group, kv_dtype, block_size, page_bytes, sizes)
        if tokens is None:
            raise InvalidValue(
                "block_size",
                block_size,
                f"no multiple of it that fits in a page of {page_bytes} bytes suits the attention of {group.label}, "
                f"which takes {describe_page_sizes(sizes)} tokens a page",
                remedy="leave out --block-size, or choose another",
            )
        specs.append(
            KVGroupSpec(
                index=index,
                kind=group.kind,
                layers=group.layers,
                tokens_per_page=tokens,
                num_heads=group.num_heads,
                num_kv_heads=group.num_kv_heads,
                head_size=group.head_size,
                dtype=kv_dtype,
                window=group.window,
                layout=layouts[index] if layouts else KVLayout(),
            )
        )
    hash_block = math.gcd(*(spec.tokens_per_page for spec in specs)) if specs else block_size
    return KVGeometry(page_bytes=page_bytes, groups=tuple(specs), block_size=hash_block)


def page_bytes_for(groups: Sequence[LayerGroup], kv_dtype: str, block_size: int) -> int:
    """Bytes of a page that holds block_size tokens of any group."""
    return max((block_size * group.bytes_per_token(kv_dtype) for group in groups), default=0)


def tokens_per_page(group: LayerGroup, kv_dtype: str, block_size: int, page_bytes: int, sizes: PageSizes) -> int | None:
    """The most tokens of a group in a page: a multiple of block_size that the backend takes; None: there is none."""
    most = page_bytes // group.bytes_per_token(kv_dtype)
    candidates = range(most - most % block_size, 0, -block_size)
    return next((tokens for tokens in candidates if sizes.allows(tokens)), None)


def block_size_candidates(page_sizes: Sequence[PageSizes]) -> list[int]:
    """Sizes to try when nobody asked for one: those that backends prefer, then 16 and its doublings."""
    preferred = [size for sizes in page_sizes for size in _preferred(sizes)]
    doublings = [DEFAULT_BLOCK_SIZE << shift for shift in range(_LARGEST_BLOCK_SIZE.bit_length() - 4)]
    return list(dict.fromkeys([*preferred, *doublings]))


def wasted_share(geometry: KVGeometry) -> float:
    """The largest share of a page that a group leaves unused."""
    shares = [
        1
        - spec.tokens_per_page
        * 2
        * spec.num_kv_heads
        * spec.head_size
        * DTYPE_BYTES[spec.dtype]
        * len(spec.layers)
        / geometry.page_bytes
        for spec in geometry.groups
    ]
    return max(shares, default=0.0)


def describe_page_sizes(sizes: PageSizes) -> str:
    """ "16 or 32" or "multiples of 16"."""
    return " or ".join(map(str, sizes.exact)) if sizes.exact else f"multiples of {sizes.multiple_of}"


def _preferred(sizes: PageSizes) -> tuple[int, ...]:
    if sizes.exact:
        return sizes.exact
    return (math.ceil(DEFAULT_BLOCK_SIZE / sizes.multiple_of) * sizes.multiple_of,)


def _key(layer: LayerSpec) -> tuple[object, ...]:
    return (
        layer.kind,
        layer.window,
        layer.num_heads,
        layer.num_kv_heads,
        layer.head_size,
        layer.scale,
        layer.softcap,
    )
