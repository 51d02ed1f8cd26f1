"""Areas "graphs" and "memory": a captured function gives what an eager one gives; memory numbers make sense."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from inferplane_api.testing.case import Case, NotTested, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.platform import Platform
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

CAPTURE = "graph_capture"
SIZES = (1, 8)
ALLOCATION = 32 * 2**20
"""Bytes that are allocated and given back; more than allocators round to."""

SLACK = 64 * 2**20
STATM = Path("/proc/self/statm")


def graph_cases(declarations: Declarations) -> list[Case]:
    """One case where capture is declared."""
    probe = declarations.probe
    if declarations.plugin is not declarations.owner or probe is None or not declarations.present:
        return []
    name = declarations.platform
    if CAPTURE not in probe.devices[0].features:
        return [_case("graphs", "capture", f"{name} captures graphs", "full", _not_declared)]
    return [_case("graphs", "capture", f"{name} declares {CAPTURE}", "full", _check_capture)]


def memory_cases(declarations: Declarations) -> list[Case]:
    """Numbers, transfers through pinned memory, and the baseline after giving memory back."""
    if declarations.plugin is not declarations.owner:
        return []
    name = declarations.platform
    numbers = _case("memory", "numbers", f"{name} measures its memory", "core", _check_numbers)
    if declarations.spec is not None and declarations.spec.runner_seam:
        return [numbers]  # core allocates nothing there, and the platform may have no tensors
    return [
        numbers,
        _case("memory", "pinned", f"{name} gives host memory for transfers", "core", _check_pinned),
        _case("memory", "baseline", f"{name} gives memory back", "full", _check_baseline),
    ]


def _case(area: str, name: str, claim: str, level: str, run: Callable[[Kit], None]) -> Case:
    return Case(area=area, name=name, level=level, claim=claim, run=run)


def _not_declared(kit: Kit) -> None:
    raise NotTested(f"the device does not declare {CAPTURE}")


def _check_capture(kit: Kit) -> None:
    import torch

    graphs = kit.platform().graphs()
    if graphs is None:
        require(False, f"{kit.spec.name} declares {CAPTURE} and graphs() gives None")
        return
    for size in kit.spec.scheduling.token_buckets or SIZES:
        x = torch.zeros((size, 16), device=kit.torch_device)
        out = torch.zeros_like(x)

        def function(x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            out.copy_(torch.tanh(x * 2 + 1).cumsum(-1))

        replay = graphs.capture((size,), function)
        for seed in range(3):
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
            function()
            kit.platform().runtime.synchronize()
            eager = out.clone()
            out.zero_()
            replay()
            kit.platform().runtime.synchronize()
            same = torch.allclose(out.cpu(), eager.cpu(), rtol=1e-6, atol=1e-6)
            require(same, f"{kit.spec.name} declares {CAPTURE} and a replay with new inputs differs from eager")


def _check_numbers(kit: Kit) -> None:
    memory = kit.platform().memory
    free, total, peak = memory.free(), memory.total(), memory.peak()
    for name, value in (("free", free), ("total", total), ("peak", peak)):
        right = isinstance(value, int) and value >= 0
        require(right, f"{kit.spec.name}: memory.{name}() gives {value!r}, not a number of bytes")
    require(total > 0, f"{kit.spec.name}: memory.total() is 0")
    require(free <= total, f"{kit.spec.name}: memory.free() = {free} is more than memory.total() = {total}")
    declared = kit.device.memory_bytes
    fits = not declared or total <= declared * 1.01
    require(fits, f"{kit.spec.name}: memory.total() = {total} is more than the device's {declared} bytes")
    memory.reset_peak()


def _check_pinned(kit: Kit) -> None:
    import torch

    memory = kit.platform().memory
    pinned = memory.pinned((3, 5), torch.float32)
    right = tuple(pinned.shape) == (3, 5) and pinned.dtype == torch.float32 and pinned.device.type == "cpu"
    require(right, f"{kit.spec.name}: memory.pinned() gives {list(pinned.shape)} {pinned.dtype} on {pinned.device}")
    pinned.copy_(torch.arange(15.0).reshape(3, 5))
    moved = pinned.to(kit.torch_device, non_blocking=True)
    kit.platform().runtime.synchronize()
    require(torch.equal(moved.cpu(), pinned), f"{kit.spec.name}: a transfer from pinned memory changes the numbers")


def _check_baseline(kit: Kit) -> None:
    platform = kit.platform()
    if not kit.device.memory_bytes:
        if not STATM.exists():
            raise NotTested("the device shares the host's memory and this system does not say what a process holds")
        _check_host_baseline(kit, platform)
        return
    _allocate(platform)
    before = platform.memory.free()
    for _ in range(3):
        _allocate(platform)
    kept = before - platform.memory.free()
    require(kept < SLACK, f"{kit.spec.name}: {kept} bytes are not given back after allocating three times")


def _check_host_baseline(kit: Kit, platform: Platform) -> None:
    """The host's free memory belongs to others too: look at this process instead."""
    _allocate(platform)
    before = _resident()
    for _ in range(3):
        _allocate(platform)
    grown = _resident() - before
    require(grown < SLACK, f"{kit.spec.name}: the process keeps {grown} bytes after allocating three times")


def _allocate(platform: Platform) -> None:
    import torch

    for tag in ("weights", "kv"):
        with platform.memory.region(tag):
            block = torch.zeros(ALLOCATION, dtype=torch.uint8, device=platform.device)
            block.fill_(1)
        platform.runtime.synchronize()
        del block
    gc.collect()


def _resident() -> int:
    import resource

    return int(STATM.read_text().split()[1]) * resource.getpagesize()
