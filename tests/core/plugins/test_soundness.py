"""A value that no rule of selection could work with is found when the descriptor is read, and named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from inferplane.config import PlatformConfig
from inferplane.plugins.discovery import discover
from inferplane.plugins.inventory import list_entry_points
from inferplane.plugins.soundness import unsound
from inferplane_api.spec import AttentionSpec, HeadSizes, KernelSpec, PageSizes, PlatformSpec, ProbeState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from inferplane_api.spec import HostInfo

PLATFORM: dict[str, Any] = {"name": "a", "load": "a:b", "probe": "a:c", "tier": 1}
ATTENTION: dict[str, Any] = {
    "id": "a.b",
    "load": "a:b",
    "platforms": frozenset({"*"}),
    "kinds": frozenset({"full"}),
    "dtypes": frozenset({"float32"}),
    "kv_dtypes": frozenset({"float32"}),
}
KERNEL: dict[str, Any] = {
    "id": "a.b",
    "kind": "ops",
    "load": "a:b",
    "platforms": frozenset({"*"}),
    "dtypes": frozenset({"float32"}),
}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (PlatformSpec(**PLATFORM, requires_torch="2.9"), "requires_torch"),
        (AttentionSpec(**ATTENTION, head_sizes=HeadSizes(multiple_of=0)), "head_sizes.multiple_of"),
        (AttentionSpec(**ATTENTION, page_sizes=PageSizes(multiple_of=0)), "page_sizes.multiple_of"),
        (AttentionSpec(**ATTENTION, layouts=()), "layouts"),
        (AttentionSpec(**ATTENTION, score=100), "score"),
        (KernelSpec(**KERNEL, score=-1), "score"),
    ],
)
def test_an_unsound_value_is_named(spec: Any, field: str) -> None:
    reason = unsound(spec)
    assert reason is not None
    assert reason.field == field


@pytest.mark.parametrize(
    "spec", [PlatformSpec(**PLATFORM, requires_torch=">=2.9"), AttentionSpec(**ATTENTION), KernelSpec(**KERNEL)]
)
def test_sound_values_pass(spec: Any) -> None:
    assert unsound(spec) is None


def test_one_plugins_unsound_value_stops_nobody_else(
    write_distribution: Callable[..., str], host: HostInfo, site: Path
) -> None:
    source = (
        "from inferplane_api.spec import PlatformSpec\n"
        'PLATFORM = PlatformSpec(name="acme", load="x:y", probe="x:z", tier=5, requires_torch="2.9")\n'
    )
    write_distribution("acme-npu", source, {"platforms": {"acme": "PLATFORM"}})
    discovery = discover(host, PlatformConfig())
    try:
        found = {platform.name: platform for platform in discovery.platforms}
        assert found["acme"].result.state is ProbeState.BROKEN
        assert found["acme"].result.reasons[0].field == "requires_torch"
        assert found["reference"].result.state is ProbeState.PRESENT
    finally:
        discovery.close()


def test_what_an_interrupted_install_left_is_no_plugin(write_distribution: Callable[..., str], site: Path) -> None:
    write_distribution("acme-npu", "", {"platforms": {"acme": "PLATFORM"}})
    (info,) = site.glob("acme_npu*.dist-info")
    assert any(entry.distribution == "acme-npu" for entry in list_entry_points())
    info.rename(site / ("~" + info.name[1:]))
    assert not any(entry.distribution == "acme-npu" for entry in list_entry_points())
