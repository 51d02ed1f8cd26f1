"""Facts about the host: processor, memory, devices on the bus, torch's version. Runs no plugin, imports no torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from inferplane_api.spec import HostInfo, PciDevice

PROC = Path("/proc")
SYS = Path("/sys")


def collect_host(*, proc: Path = PROC, sys_root: Path = SYS) -> HostInfo:
    """Read the host's facts. `proc` and `sys_root` are where procfs and sysfs are mounted; a missing file is no error.

    Takes about a millisecond on Linux; elsewhere there is no bus to list.
    """
    fields = _cpu_fields(proc)
    return HostInfo(
        os=sys.platform,
        machine=platform.machine(),
        cpu_model=fields.get("model name") or fields.get("Model") or fields.get("Hardware") or platform.processor(),
        cpu_flags=frozenset((fields.get("flags") or fields.get("Features") or "").split()),
        cpu_count=_cpu_count(proc, sys_root),
        memory_bytes=_memory_bytes(proc, sys_root),
        pci_devices=scan_pci(sys_root),
        torch_version=distribution_version("torch"),
    )


def distribution_version(name: str) -> str | None:
    """The installed version from metadata; None when the distribution is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def scan_pci(sys_root: Path = SYS) -> tuple[PciDevice, ...]:
    """Every device on the PCI bus, in order of address; empty where the host lists none."""
    folder = sys_root / "bus" / "pci" / "devices"
    if not folder.is_dir():
        return ()
    devices = []
    for entry in sorted(folder.iterdir()):
        ids = [_hexadecimal(entry / name) for name in ("vendor", "device", "class")]
        if None not in ids:
            vendor, device, pci_class = (value or 0 for value in ids)
            devices.append(PciDevice(address=entry.name, vendor=vendor, device=device, pci_class=pci_class))
    return tuple(devices)


def _cpu_fields(proc: Path) -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; on ARM boards, fields of the last block (Hardware, Model) too."""
    fields: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _cpu_count(proc: Path, sys_root: Path) -> int:
    """Processors of the affinity mask, no more than the container's quota allows (rounded down, at least one)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders("cpu", proc, sys_root):
        quota, period = _cpu_quota(folder)
        if quota > 0 and period > 0:
            count = min(count, quota // period)
    return max(count, 1)


def _cpu_quota(folder: Path) -> tuple[int, int]:
    """(quota, period) in microseconds; (0, 0) when the group has no limit."""
    unified = _text(folder / "cpu.max").split()
    if len(unified) == 2:
        return (0, 0) if unified[0] == "max" else (int(unified[0]), int(unified[1]))
    return _decimal(folder / "cpu.cfs_quota_us") or 0, _decimal(folder / "cpu.cfs_period_us") or 0


def _memory_bytes(proc: Path, sys_root: Path) -> int:
    """Physical memory, no more than the container's limit."""
    total = _physical_memory(proc)
    for folder in _cgroup_folders("memory", proc, sys_root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _decimal(folder / name)
            if limit is not None and limit > 0:
                total = min(total, limit) if total else limit
    return total


def _physical_memory(proc: Path) -> int:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_folders(controller: str, proc: Path, sys_root: Path) -> Iterator[Path]:
    """The control groups of this process that may limit `controller`, of both versions, from the leaf to the root.

    Inside a container the path may be the host's and not exist under the mount: whatever exists counts.
    """
    mount = sys_root / "fs" / "cgroup"
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        roots = [mount / controllers, mount / controller] if controllers else [mount, mount / "unified"]
        leaf = Path(path.lstrip("/"))
        for root in dict.fromkeys(roots):
            yield from (root / part for part in (leaf, *leaf.parents))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _decimal(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _hexadecimal(path: Path) -> int | None:
    try:
        return int(_text(path).strip(), 16)
    except ValueError:
        return None
