"""The example plugin's parts: a call outside the buckets fails, pages are copied whole, memory is counted."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from inferplane_api.attention import AttentionContext, KVScales, PagedAttention
from inferplane_api.batch import AttentionBatch
from inferplane_api.errors import InferplaneError, Unsupported
from inferplane_api.kv import KVGroupSpec, KVView
from inferplane_api.platform import Platform, PlatformContext
from inferplane_api.spec import DeviceInfo, HostInfo, ProbeState
from inferplane_examplechip.attention import ExampleChipAttention
from inferplane_examplechip.chip import Account
from inferplane_examplechip.descriptor import ATTENTION, PLATFORM
from inferplane_examplechip.ops import rms_norm
from inferplane_examplechip.platform import ExampleChipPlatform
from inferplane_examplechip.probe import probe

HOST = HostInfo(os="linux", machine="x86_64")
CPU = torch.device("cpu")
PAGE = 128


def make_attention(**changes: Any) -> ExampleChipAttention:
    group = KVGroupSpec(
        index=0,
        kind="full",
        layers=(0,),
        tokens_per_page=PAGE,
        num_heads=2,
        num_kv_heads=1,
        head_size=8,
        dtype="float32",
        layout=ATTENTION.layouts[0],
    )
    context = AttentionContext(group, 2, 0.5, torch.float32, CPU, max_tokens=8, max_requests=4, max_pages=2)
    return ExampleChipAttention(context._replace(**changes))


def make_batch(num_tokens: int = 8, num_rows: int = 4, slots: tuple[int, ...] = (128, 129, 130)) -> AttentionBatch:
    """One row of three tokens, padded."""
    query_start = np.full(num_rows + 1, len(slots), np.int32)
    query_start[0] = 0
    lengths = np.zeros(num_rows, np.int32)
    lengths[0] = len(slots)
    table = torch.zeros((num_rows, 2), dtype=torch.int32)
    table[0, 0] = 1
    mapping = torch.full((num_tokens,), -1)
    mapping[: len(slots)] = torch.tensor(slots)
    return AttentionBatch(
        query_start=torch.from_numpy(query_start),
        seq_lens=torch.from_numpy(lengths),
        page_table=table,
        slot_mapping=mapping,
        query_start_host=query_start,
        seq_lens_host=lengths,
        num_decode_rows=0,
        max_query_len=len(slots),
        max_seq_len=len(slots),
    )


def make_view() -> KVView:
    k, v = torch.zeros((3, 1, PAGE, 8)), torch.zeros((3, 1, PAGE, 8))
    return KVView(k, v, ATTENTION.layouts[0], PAGE)


def inputs(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn((num_tokens, 2, 8), generator=generator)
    k, v = (torch.randn((num_tokens, 1, 8), generator=generator) for _ in range(2))
    return q, k, v, torch.empty_like(q)


@pytest.mark.parametrize(("num_tokens", "num_rows", "says"), [(7, 4, "7 tokens"), (8, 3, "3 requests")])
def test_a_step_outside_the_buckets_fails(num_tokens: int, num_rows: int, says: str) -> None:
    with pytest.raises(InferplaneError, match=f"no program for {says}") as caught:
        make_attention().plan(make_batch(num_tokens, num_rows))
    assert caught.value.code == "examplechip.shape"


def test_a_call_outside_the_buckets_fails() -> None:
    attention = make_attention()
    attention.plan(make_batch())
    q, k, v, out = inputs(9)
    with pytest.raises(InferplaneError, match="no program for 9 tokens"):
        attention.run(q, k, v, make_view(), out)
    with pytest.raises(InferplaneError, match="no program for 33 tokens"):
        rms_norm(torch.ones(33, 8), torch.ones(8), 1e-6)


def test_pages_are_copied_whole_and_nothing_else_changes() -> None:
    view = make_view()
    for plane in (view.k, view.v):
        plane[1:] = torch.arange(plane[1:].numel()).view(plane[1:].shape)
    before = view.k.clone(), view.v.clone()
    attention = make_attention()
    attention.plan(make_batch())
    q, k, v, out = inputs(8)
    attention.run(q, k, v, view, out)
    for plane, old, new in ((view.k, before[0], k), (view.v, before[1], v)):
        assert torch.equal(plane[1, 0, :3], new[:3, 0])
        assert torch.equal(plane[1, 0, 3:], old[1, 0, 3:])
        assert torch.equal(plane[2], old[2])
        assert not plane[0].any(), "the null page holds zeros"
    assert not out[3:].any()
    assert out[:3].abs().sum() > 0


def test_what_is_not_declared_is_refused() -> None:
    with pytest.raises(Unsupported, match="softcap"):
        make_attention(softcap=30.0)
    attention = make_attention()
    attention.plan(make_batch())
    q, k, v, out = inputs(8)
    for extra in ({"lse": torch.empty(8, 2)}, {"scales": KVScales(1.0, 1.0)}):
        with pytest.raises(Unsupported):
            attention.run(q, k, v, make_view(), out, **extra)


def test_the_account_follows_storages() -> None:
    account = Account(100_000)
    with account.charge("weights"):
        held = [torch.zeros(1000), torch.from_numpy(np.zeros(500))]
        temporary = torch.zeros(5000)
        del temporary
    assert account.used() == 4000 + 4000
    view = held[0][10:20]
    del held
    gc.collect()
    assert account.used() == 4000, "a view keeps its storage"
    del view
    gc.collect()
    assert account.used() == 0
    assert account.peak == 8000
    says = "examplechip has 100000 bytes, and with kv 200000 are in use"
    with pytest.raises(InferplaneError, match=says), account.charge("kv"):
        too_much = torch.zeros(50_000)
    del too_much


def test_the_platform_is_one_of_the_contract() -> None:
    platform = ExampleChipPlatform(PlatformContext(device=DeviceInfo(memory_bytes=2**20), options={}))
    assert isinstance(platform, Platform)
    assert isinstance(make_attention(), PagedAttention)
    assert (platform.memory.free(), platform.memory.total(), platform.memory.peak()) == (2**20, 2**20, 0)
    with platform.memory.region("kv"):
        pool = torch.zeros(1024, dtype=torch.uint8)
    assert platform.memory.free() == 2**20 - len(pool)
    assert platform.memory.peak() == len(pool)
    del pool
    platform.memory.reset_peak()
    assert platform.memory.peak() == 0
    assert (platform.graphs(), PLATFORM.runner_seam) == (None, False)


def test_the_probe() -> None:
    assert probe(HOST).state is ProbeState.ABSENT
    found = probe(msgspec.structs.replace(HOST, options={"devices": 2, "memory_mib": 64}))
    assert found.state is ProbeState.PRESENT
    assert [(device.index, device.memory_bytes) for device in found.devices] == [(0, 64 * 2**20), (1, 64 * 2**20)]
    assert not any("in_place_kv_write" in device.features for device in found.devices)
    broken = probe(msgspec.structs.replace(HOST, options={"devices": 1, "memory_mib": 0}))
    assert broken.state is ProbeState.BROKEN
    assert broken.reasons[0].field == "memory_mib"
