"""Pages against brute force, over random models, backends and block sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplane.errors import InvalidValue
from inferplane.plan.geometry import (
    DTYPE_BYTES,
    block_size_candidates,
    kv_geometry,
    layer_groups,
    wasted_share,
)
from inferplane_api.kv import KVLayout
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.spec import PageSizes

ANY = PageSizes()

layers = st.builds(
    LayerSpec,
    kind=st.just("full"),
    num_heads=st.sampled_from([4, 8]),
    num_kv_heads=st.integers(1, 4),
    head_size=st.sampled_from([16, 64, 80]),
    softcap=st.sampled_from([None, 50.0]),
    features=st.sampled_from([frozenset(), frozenset({"softcap"}), frozenset({"sinks"})]),
) | st.builds(
    LayerSpec,
    kind=st.just("sliding"),
    num_heads=st.just(4),
    num_kv_heads=st.integers(1, 2),
    head_size=st.sampled_from([16, 64]),
    window=st.sampled_from([32, 512]),
)
page_sizes = st.builds(PageSizes, multiple_of=st.sampled_from([1, 2, 8, 16])) | st.builds(
    PageSizes, exact=st.sets(st.sampled_from([16, 32, 64, 128]), min_size=1).map(lambda sizes: tuple(sorted(sizes)))
)


def model_of(*specs: LayerSpec) -> ModelSpec:
    return ModelSpec(
        model_type="m",
        architecture="M",
        num_layers=len(specs),
        hidden_size=8,
        intermediate_size=8,
        vocab_size=8,
        max_position=8,
        dtype="float32",
        layers=specs,
    )


def token_bytes(model: ModelSpec, members: tuple[int, ...], dtype: str) -> int:
    """Summed layer by layer."""
    size = DTYPE_BYTES[dtype]
    return sum(2 * model.layers[index].num_kv_heads * model.layers[index].head_size * size for index in members)


@given(
    specs=st.lists(layers, min_size=1, max_size=12),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    block_size=st.sampled_from([1, 3, 8, 16, 32]),
    data=st.data(),
)
def test_pages_are_the_best_that_fit(specs: list[LayerSpec], dtype: str, block_size: int, data: st.DataObject) -> None:
    model = model_of(*specs)
    groups = layer_groups(model)
    sizes = [data.draw(page_sizes) for _ in groups]
    need = [token_bytes(model, group.layers, dtype) for group in groups]
    page_bytes = max(block_size * each for each in need)
    expected = [
        max((n for n in range(block_size, each + 1, block_size) if allowed.allows(n)), default=None)
        for each, allowed in zip((page_bytes // size for size in need), sizes, strict=True)
    ]
    if None in expected:
        with pytest.raises(InvalidValue, match=f"block_size={block_size}"):
            kv_geometry(model, dtype, block_size, sizes)
        return
    geometry = kv_geometry(model, dtype, block_size, sizes)
    assert geometry.page_bytes == page_bytes
    assert [group.tokens_per_page for group in geometry.groups] == expected
    assert geometry.block_size == math.gcd(*(n for n in expected if n is not None))
    assert all(group.tokens_per_page % geometry.block_size == 0 for group in geometry.groups)
    waste = [1 - n * size / page_bytes for n, size in zip(expected, need, strict=True) if n is not None]
    assert wasted_share(geometry) == pytest.approx(max(waste))


@given(specs=st.lists(layers, min_size=1, max_size=12))
def test_groups_partition_the_layers(specs: list[LayerSpec]) -> None:
    model = model_of(*specs)
    groups = layer_groups(model)
    assert sorted(index for group in groups for index in group.layers) == list(range(len(specs)))
    assert [group.layers[0] for group in groups] == sorted(group.layers[0] for group in groups)
    shapes = set()
    for group in groups:
        members = [model.layers[index] for index in group.layers]
        shape = {
            (each.kind, each.window, each.num_heads, each.num_kv_heads, each.head_size, each.softcap)
            for each in members
        }
        assert len(shape) == 1
        shapes |= shape
        assert group.features == frozenset().union(*(each.features for each in members))
    assert len(shapes) == len(groups), "layers that can share a group do"


def test_gemma_3_270m(make_model: Callable[..., ModelSpec], gemma_layers: tuple[LayerSpec, ...]) -> None:
    model = make_model(gemma_layers)
    geometry = kv_geometry(model, "bfloat16", 16, [ANY, ANY])
    assert [(group.kind, len(group.layers), group.tokens_per_page) for group in geometry.groups] == [
        ("sliding", 15, 16),
        ("full", 3, 80),
    ]
    assert geometry.page_bytes == 16 * 15 * 2 * 256 * 2
    assert geometry.block_size == 16
    assert geometry.groups[0].window == 512
    assert wasted_share(geometry) == 0


def test_exact_sizes_waste_and_say_so(
    make_model: Callable[..., ModelSpec], gemma_layers: tuple[LayerSpec, ...]
) -> None:
    geometry = kv_geometry(make_model(gemma_layers), "bfloat16", 16, [ANY, PageSizes(exact=(16, 64))])
    assert geometry.groups[1].tokens_per_page == 64
    assert wasted_share(geometry) == pytest.approx(0.2)


def test_layouts_are_those_of_the_backends(
    make_model: Callable[..., ModelSpec], gemma_layers: tuple[LayerSpec, ...]
) -> None:
    layouts = [KVLayout(order="htd"), KVLayout(order="thd")]
    geometry = kv_geometry(make_model(gemma_layers), "float16", 16, [ANY, ANY], layouts)
    assert [group.layout for group in geometry.groups] == layouts


def test_a_size_that_no_backend_takes_names_group_and_sizes(
    make_model: Callable[..., ModelSpec], gemma_layers: tuple[LayerSpec, ...]
) -> None:
    with pytest.raises(InvalidValue, match=r"full x3, which takes 128 or 256 tokens a page") as caught:
        kv_geometry(make_model(gemma_layers), "bfloat16", 16, [ANY, PageSizes(exact=(128, 256))])
    assert "--block-size" in caught.value.remedy


def test_sizes_to_try_begin_with_what_backends_prefer() -> None:
    sizes = [PageSizes(exact=(64, 128)), PageSizes(multiple_of=48)]
    assert block_size_candidates(sizes)[:5] == [64, 128, 48, 16, 32]
    assert block_size_candidates([ANY])[0] == 16
    assert max(block_size_candidates([ANY])) == 1024
