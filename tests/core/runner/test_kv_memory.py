"""The pool's size and how layers lie in it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.errors import InferplaneError
from inferplane.runner.kv_memory import allocate_pool, kv_views, plan_memory
from inferplane_api.kv import KVGeometry, KVGroupSpec, KVLayout


@st.composite
def geometries(draw: Any) -> KVGeometry:
    """One to three groups over interleaved layers; a page holds the largest, and up to a row more."""
    num_groups = draw(st.integers(1, 3))
    owner = draw(st.lists(st.integers(0, num_groups - 1), min_size=num_groups, max_size=6))
    groups, needed = [], 0
    for index in range(num_groups):
        layers = tuple(layer for layer, group in enumerate(owner) if group == index)
        if not layers:
            continue
        spec = KVGroupSpec(
            index=len(groups),
            kind="full",
            layers=layers,
            tokens_per_page=draw(st.sampled_from([1, 2, 4, 16])),
            num_heads=4,
            num_kv_heads=draw(st.sampled_from([1, 2])),
            head_size=draw(st.sampled_from([4, 6])),
            dtype=draw(st.sampled_from(["float32", "bfloat16"])),
            layout=KVLayout(order=draw(st.sampled_from(["thd", "htd"]))),
        )
        groups.append(spec)
        itemsize = 4 if spec.dtype == "float32" else 2
        tokens = spec.tokens_per_page * spec.num_kv_heads * spec.head_size
        needed = max(needed, 2 * len(layers) * tokens * itemsize)
    return KVGeometry(page_bytes=needed + draw(st.sampled_from([0, 4, 64])), groups=tuple(groups), block_size=1)


@settings(max_examples=60, deadline=None)
@given(geometry=geometries(), num_pages=st.integers(1, 4))
def test_views_are_disjoint_in_a_page_and_stay_inside_it(geometry: KVGeometry, num_pages: int) -> None:
    num_layers = 1 + max(layer for group in geometry.groups for layer in group.layers)
    for group in geometry.groups:
        pool = allocate_pool(num_pages, geometry.page_bytes, torch.device("cpu"))
        views = kv_views(pool, geometry, num_layers)
        offset = 0
        for layer in group.layers:
            for plane in (views[layer].k, views[layer].v):
                for page in range(num_pages):
                    before = pool.clone()
                    plane[page] = 1.0
                    changed = torch.nonzero((pool != before).any(dim=1)).flatten().tolist()
                    assert changed == [page], "a page's tokens lie in that page"
                    size = plane[page].numel() * plane.element_size()
                    used = pool[page, offset : offset + size].view(plane.dtype)
                    assert bool((used == 1.0).all()), "layers lie one after the other, k then v"
                    pool[page, offset : offset + size] = 0
                    assert not pool.any(), "and nothing else was touched"
                offset += size
        assert offset <= geometry.page_bytes


@pytest.mark.parametrize("order", ["thd", "htd"])
def test_the_order_inside_a_page_is_the_layouts(order: Any) -> None:
    group = KVGroupSpec(
        index=0, kind="full", layers=(0,), tokens_per_page=3, num_heads=2, num_kv_heads=2, head_size=4,
        dtype="float32", layout=KVLayout(order=order),
    )  # fmt: skip
    geometry = KVGeometry(page_bytes=4 * 2 * 3 * 2 * 4, groups=(group,), block_size=3)
    pool = allocate_pool(2, geometry.page_bytes, torch.device("cpu"))
    (view,) = kv_views(pool, geometry, 1)
    pool.view(torch.float32)[:] = torch.arange(2 * 48, dtype=torch.float32).view(2, 48)
    token, head, element = 2, 1, 3
    if order == "thd":
        assert view.k[1, token, head, element] == 48 + (token * 2 + head) * 4 + element
        assert view.v[1, token, head, element] == 48 + 24 + (token * 2 + head) * 4 + element
    else:
        assert view.k[1, head, token, element] == 48 + (head * 3 + token) * 4 + element
    assert view.tokens_per_page == 3


def test_a_layer_without_a_group_and_a_page_too_small_are_errors(plan_of: Any, tiny_llama_dir: Any) -> None:
    geometry = plan_of(tiny_llama_dir).geometry
    pool = allocate_pool(1, geometry.page_bytes, torch.device("cpu"))
    with pytest.raises(InferplaneError, match=r"\[2\]"):
        kv_views(pool, geometry, 3)
    with pytest.raises(InferplaneError, match="elements a page"):
        kv_views(pool[:, : geometry.page_bytes - 4], geometry, 2)


def test_a_large_pool_takes_no_memory_before_it_is_used() -> None:
    import psutil

    process = psutil.Process()
    before = process.memory_info().rss
    pool = allocate_pool(1024, 2**20, torch.device("cpu"))
    assert process.memory_info().rss - before < 2**27
    assert pool.shape == (1024, 2**20)
    assert not pool[512].any()


GIB = 2**30


def test_the_pool_fits_measured_memory_and_the_table_adds_up(plan_of: Any, tiny_llama_dir: Any) -> None:
    plan = plan_of(
        tiny_llama_dir, memory_limit_bytes=None, memory_utilization=0.5, max_num_seqs=64, max_model_len=500,
        max_num_batched_tokens=64,
    )  # fmt: skip
    free = 20 * 2**20
    memory = plan_memory(plan, free, None, 123, 4)
    rows = {row.name: row.num_bytes for row in memory.table}
    assert rows["weights"] == 123
    assert rows["KV cache"] == memory.num_pages * plan.geometry.page_bytes
    assert free / 2 - plan.geometry.page_bytes < rows["work space"] + rows["KV cache"] <= free / 2
    assert rows["work space"] + rows["KV cache"] + rows["free"] == free


def test_no_more_pages_than_requests_could_use(plan_of: Any, tiny_llama_dir: Any, tiny_gemma3_dir: Any) -> None:
    plan = plan_of(tiny_llama_dir, memory_limit_bytes=None, max_num_seqs=3, max_model_len=101, block_size=4)
    assert plan_memory(plan, 64 * GIB, None, 0, 4).num_pages == 3 * 26 + 1
    assert plan_memory(plan, 64 * GIB, 50, 0, 4).num_pages == 50
    hybrid = plan_of(
        tiny_gemma3_dir, memory_limit_bytes=None, max_num_seqs=1, max_model_len=400, max_num_batched_tokens=20
    )
    sliding, full = (group.tokens_per_page for group in hybrid.geometry.groups)
    expected = -(-400 // full) + int(np.ceil((31 + 20 + sliding) / sliding))
    assert plan_memory(hybrid, 64 * GIB, None, 0, 4).num_pages == expected + 1


def test_an_explicit_size_beats_the_utilization(plan_of: Any, tiny_llama_dir: Any) -> None:
    plan = plan_of(tiny_llama_dir, memory_limit_bytes=2**20, memory_utilization=0.01, max_model_len=400)
    assert plan_memory(plan, GIB, None, 0, 4).num_pages == 2**20 // plan.geometry.page_bytes


@pytest.mark.parametrize(
    ("changes", "max_pages", "knob"),
    [
        ({"memory_limit_bytes": None}, None, "--memory-utilization"),
        ({"memory_limit_bytes": 2**14}, None, "--kv-cache-memory-bytes"),
        ({"max_pages": 3}, 3, "--num-pages-override"),
        ({"max_pages": 2, "auto_max_model_len": True}, 1, "--num-pages-override"),
    ],
)
def test_not_one_request_is_an_error_that_names_the_knob(
    plan_of: Any, tiny_llama_dir: Any, changes: Any, max_pages: int | None, knob: str
) -> None:
    plan = plan_of(tiny_llama_dir, **changes)
    free = 2**20 if changes.get("memory_limit_bytes", 0) is None else GIB
    with pytest.raises(InferplaneError) as caught:
        plan_memory(plan, free, max_pages, 0, 4)
    assert knob in caught.value.remedy
    assert caught.value.code == "memory.kv_cache"


def test_a_context_that_nobody_asked_for_may_shrink(plan_of: Any, tiny_llama_dir: Any) -> None:
    plan = plan_of(tiny_llama_dir, memory_limit_bytes=2**14, auto_max_model_len=True)
    assert plan_memory(plan, GIB, None, 0, 4).num_pages == 2**14 // plan.geometry.page_bytes


class TestEncoder:
    """A model whose layers keep nothing."""

    @pytest.fixture
    def plan(self, plan_of: Any, tmp_path: Any) -> Any:
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = {"model_type": "bert", "vocab_size": 90, "max_position_embeddings": 32, **sizes}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return plan_of(tmp_path, max_model_len=32, max_num_batched_tokens=64)

    def test_it_gets_the_null_page_alone(self, plan: Any) -> None:
        planned = plan_memory(plan, free=2**30, max_pages=None, weights=100, itemsize=4)
        assert planned.num_pages == 1
        assert [row.name for row in planned.table] == ["weights", "work space", "free"]
        pool = allocate_pool(planned.num_pages, plan.geometry.page_bytes, torch.device("cpu"))
        assert pool.numel() == 0
        assert kv_views(pool, plan.geometry, plan.model.num_layers) == ()

    def test_a_step_that_does_not_fit_names_the_flags(self, plan: Any) -> None:
        with pytest.raises(InferplaneError, match="64 tokens") as caught:
            plan_memory(plan, free=1000, max_pages=None, weights=0, itemsize=4)
        assert "--max-num-batched-tokens" in caught.value.remedy
