"""Area "memory": the numbers follow what is held, transfers keep their numbers, what is given back is free again."""

from __future__ import annotations

import gc
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from inferplane_api.testing.case import Case, Lie, NotTested, SlowButAllowed, require

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from inferplane_api.platform import DeviceMemory, Platform
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

MIB = 2**20
BLOCKS = (64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB)
"""Held one after the other, each beside those before it, until the numbers have followed one: where others use the same
memory, or an allocator has kept some, a small block may not be seen."""

LOOKS = 3
PAUSE = 0.005
"""Seconds between two looks at memory that others use too."""

ALLOCATION = 32 * MIB
"""Bytes that are allocated and given back again and again; more than allocators round to or keep."""

REPEATS = 2
SLACK = 64 * MIB
STATM = Path("/proc/self/statm")


def cases(declarations: Declarations) -> list[Case]:
    """Numbers, and whether they follow; transfers through pinned memory; and the baseline after giving memory back."""
    if declarations.plugin is not declarations.owner:
        return []
    name = declarations.platform
    numbers = _case("numbers", f"{name} measures its memory", "core", check_numbers)
    if declarations.spec is not None and declarations.spec.runner_seam:
        return [numbers]  # core allocates nothing there, and the platform may have no tensors
    return [
        numbers,
        _case("held", f"{name} measures what is held", "core", check_held),
        _case("pinned", f"{name} gives host memory for transfers", "core", _check_pinned),
        _case("baseline", f"{name} gives memory back", "full", _check_baseline),
    ]


def _case(name: str, claim: str, level: str, run: Callable[[Kit], None]) -> Case:
    return Case(area="memory", name=name, level=level, claim=claim, run=run)


def check_numbers(kit: Kit) -> None:
    """The three numbers by themselves, and beside what the probe and the host say."""
    memory, name = kit.platform().memory, kit.spec.name
    free, total, peak = memory.free(), memory.total(), memory.peak()
    for what, value in (("free", free), ("total", total), ("peak", peak)):
        right = isinstance(value, int) and value >= 0
        require(right, f"{name}: memory.{what}() gives {value!r}, not a number of bytes")
    require(total > 0, f"{name}: memory.total() is 0")
    require(free <= total, f"{name}: memory.free() = {free} is more than memory.total() = {total}")
    declared = kit.device.memory_bytes
    fits = not declared or total <= declared * 1.01
    require(fits, f"{name}: memory.total() = {total} is more than the device's {declared} bytes")
    if not declared and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        message = f"{name}: memory.total() = {total} is more than the host's {physical} bytes, which the device shares"
        require(total <= physical * 1.01, message)
    memory.reset_peak()


def check_held(kit: Kit) -> None:
    """While a block is held, `free` is lower by it and `peak` has risen; afterwards it can be had again."""
    platform, name = kit.platform(), kit.spec.name
    shared = not kit.device.memory_bytes
    _release(platform, [_block(platform, MIB)])  # what is loaded at the first use is no part of the block
    held: list[torch.Tensor] = []
    lies = {"free": "", "peak": ""}
    tried = 0
    for size in BLOCKS:
        if size > platform.memory.free() // 4:
            break
        tried += 1
        before, held_by = _quietest(platform.memory, max), sum(map(len, held))
        platform.memory.reset_peak()
        first_peak = platform.memory.peak()
        held.append(_block(platform, size))
        free, peak = _quietest(platform.memory, min), platform.memory.peak()
        what = f"while {size} bytes are held"
        fell = before - free >= size // 2
        lies["free"] = "" if fell else f"memory.free() says {before} bytes before and {free} {what}"
        rose = peak - first_peak >= size // 2 or (shared and _old_peak(peak, held_by + size))
        lies["peak"] = "" if rose else f"memory.peak() says {first_peak} bytes before and {peak} {what}"
        if fell and rose:
            break
    if not tried:
        raise NotTested(f"less than {4 * BLOCKS[0]} bytes are free", elsewhere=True)
    found = "; ".join(lie for lie in lies.values() if lie)
    _release(platform, held)
    require(not found, f"{name} does not measure what is held: {found}")
    _check_free_again(platform, name)


def _old_peak(peak: int, least: int) -> bool:
    """A record that the system cannot reset may be older than the block, but nobody held more than the system's own
    record says, nor less than the blocks. A warning says that it did not move."""
    try:
        import resource
        import sys
    except ImportError:  # no such record here
        return False
    unit = 1 if sys.platform == "darwin" else 1024
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    old = max(least, highest - SLACK) <= peak <= highest + SLACK
    if old:
        message = f"memory.reset_peak() resets nothing: memory.peak() = {peak} is of before"
        warnings.warn(message, SlowButAllowed, stacklevel=2)
    return old


def _check_free_again(platform: Platform, name: str) -> None:
    """What was given back is free, or an allocator keeps it and it serves the next one. Larger blocks are tried while
    others, who use the same memory, hide it."""
    for size in BLOCKS:
        if size > platform.memory.free() // 4:
            break
        held = [_block(platform, size)]
        low = _quietest(platform.memory, min)
        _release(platform, held)
        high = _quietest(platform.memory, max)
        if high - low >= size // 2:
            return
        again = [_block(platform, size)]
        lower = _quietest(platform.memory, max)
        _release(platform, again)
        if low - lower < size // 2:
            return
    raise Lie(f"{name}: blocks were given back, and memory.free() stays at {platform.memory.free()}")


def _quietest(memory: DeviceMemory, best: Callable[[list[int]], int]) -> int:
    """Of a few looks at the free memory the one that others disturbed least."""
    values = [memory.free()]
    for _ in range(LOOKS - 1):
        time.sleep(PAUSE)
        values.append(memory.free())
    return best(values)


def _check_pinned(kit: Kit) -> None:
    import torch

    memory = kit.platform().memory
    for shape, dtype in (((7,), torch.int64), ((2, 3), torch.bool), ((3, 5), torch.float32)):
        pinned = memory.pinned(shape, dtype)
        right = tuple(pinned.shape) == shape and pinned.dtype == dtype and pinned.device.type == "cpu"
        what = f"for {list(shape)} {dtype} gives {list(pinned.shape)} {pinned.dtype} on {pinned.device}"
        require(right, f"{kit.spec.name}: memory.pinned() {what}")
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
    for _ in range(REPEATS):
        _allocate(platform)
    kept = before - platform.memory.free()
    require(kept < SLACK, f"{kit.spec.name}: {kept} bytes are not given back after allocating {REPEATS} times")


def _check_host_baseline(kit: Kit, platform: Platform) -> None:
    """The host's free memory belongs to others too: look at this process instead."""
    _allocate(platform)
    before = _resident()
    for _ in range(REPEATS):
        _allocate(platform)
    grown = _resident() - before
    require(grown < SLACK, f"{kit.spec.name}: the process keeps {grown} bytes after allocating {REPEATS} times")


def _allocate(platform: Platform) -> None:
    _release(platform, [_block(platform, ALLOCATION, tag) for tag in ("weights", "kv")])


def _block(platform: Platform, size: int, tag: str = "kv") -> torch.Tensor:
    """`size` bytes of the device, every page of them written."""
    import torch

    with platform.memory.region(tag):
        block = torch.ones(size, dtype=torch.uint8, device=platform.device)
    platform.runtime.synchronize()
    return block


def _release(platform: Platform, blocks: list[torch.Tensor]) -> None:
    blocks.clear()
    gc.collect()
    platform.runtime.synchronize()


def _resident() -> int:
    import resource

    return int(STATM.read_text().split()[1]) * resource.getpagesize()
