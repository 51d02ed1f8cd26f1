"""The host's facts for a probe, gathered without core; imports no torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from inferplane_api.spec import HostInfo, PciDevice

PCI = Path("/sys/bus/pci/devices")
CPUINFO = Path("/proc/cpuinfo")

BARE_HOST = HostInfo(os="linux", machine="riscv64", cpu_model="none", cpu_count=1, memory_bytes=2**30)
"""A host with no torch, no device on its bus and a processor that few know."""


def collect_host() -> HostInfo:
    """What is known about this host. Container limits are not applied."""
    fields = _cpu_fields()
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = None
    names = getattr(os, "sysconf_names", {})
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in names else 0
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return HostInfo(
        os=sys.platform,
        machine=platform.machine(),
        cpu_model=fields.get("model name", platform.processor()),
        cpu_flags=frozenset((fields.get("flags") or fields.get("Features") or "").split()),
        cpu_count=count,
        memory_bytes=memory,
        pci_devices=_pci_devices(),
        torch_version=torch_version,
    )


def _cpu_fields() -> dict[str, str]:
    fields: dict[str, str] = {}
    if CPUINFO.exists():
        for line in CPUINFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    return fields


def _pci_devices() -> tuple[PciDevice, ...]:
    if not PCI.is_dir():
        return ()
    found = []
    for folder in sorted(PCI.iterdir()):
        try:
            vendor, device, pci_class = (int((folder / name).read_text(), 16) for name in ("vendor", "device", "class"))
        except (OSError, ValueError):
            continue
        found.append(PciDevice(address=folder.name, vendor=vendor, device=device, pci_class=pci_class))
    return tuple(found)
