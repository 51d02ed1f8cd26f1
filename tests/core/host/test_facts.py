"""Facts are read from faked procfs and sysfs trees; the truth is what was written there."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from inferplane.host.facts import collect_host, distribution_version, scan_pci

GIB = 2**30

X86 = """processor\t: 0
model name\t: Imaginary 9000
flags\t\t: fpu sse avx2 avx512f

processor\t: 1
model name\t: Imaginary 9000
flags\t\t: fpu sse avx2 avx512f
"""

ARM = """processor\t: 0
Features\t: fp asimd bf16
CPU implementer\t: 0x41

Model\t\t: Board 5
"""


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    proc, sysfs = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (sysfs / "fs" / "cgroup").mkdir(parents=True)
    (proc / "cpuinfo").write_text(X86)
    (proc / "meminfo").write_text(f"MemTotal:       {64 * GIB // 1024} kB\nMemFree: 1 kB\n")
    return proc, sysfs


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def usable() -> int:
    return len(os.sched_getaffinity(0))


def test_the_real_host_agrees_with_psutil_and_platform() -> None:
    host = collect_host()
    assert host.os == sys.platform
    assert host.machine == platform.machine()
    assert 1 <= host.cpu_count <= len(psutil.Process().cpu_affinity() or [])
    assert 0 < host.memory_bytes <= psutil.virtual_memory().total
    assert host.torch_version == version("torch")


def test_processor_of_the_first_block(roots: tuple[Path, Path]) -> None:
    host = collect_host(proc=roots[0], sys_root=roots[1])
    assert host.cpu_model == "Imaginary 9000"
    assert host.cpu_flags == {"fpu", "sse", "avx2", "avx512f"}


def test_processor_of_an_arm_board(roots: tuple[Path, Path]) -> None:
    (roots[0] / "cpuinfo").write_text(ARM)
    host = collect_host(proc=roots[0], sys_root=roots[1])
    assert host.cpu_model == "Board 5"
    assert host.cpu_flags == {"fp", "asimd", "bf16"}


def test_without_a_container_everything_is_usable(roots: tuple[Path, Path]) -> None:
    host = collect_host(proc=roots[0], sys_root=roots[1])
    assert host.memory_bytes == 64 * GIB
    assert host.cpu_count == usable()


def test_unified_limits_of_any_ancestor_hold(roots: tuple[Path, Path]) -> None:
    proc, sysfs = roots
    write(proc / "self" / "cgroup", "0::/pod/leaf\n")
    write(sysfs / "fs/cgroup/pod/leaf/memory.max", "max\n")
    write(sysfs / "fs/cgroup/pod/memory.max", f"{8 * GIB}\n")
    write(sysfs / "fs/cgroup/pod/leaf/cpu.max", "150000 100000\n")
    host = collect_host(proc=proc, sys_root=sysfs)
    assert host.memory_bytes == 8 * GIB
    assert host.cpu_count == 1, "a quota of 1.5 processors is one thread at full speed"


def test_no_quota_is_no_limit(roots: tuple[Path, Path]) -> None:
    proc, sysfs = roots
    write(proc / "self" / "cgroup", "0::/leaf\n")
    write(sysfs / "fs/cgroup/leaf/cpu.max", "max 100000\n")
    assert collect_host(proc=proc, sys_root=sysfs).cpu_count == usable()


def test_version_1_limits_hold_where_the_path_is_the_hosts(roots: tuple[Path, Path]) -> None:
    """In a container /proc/self/cgroup shows the host's path, and the mount is already the container's group."""
    proc, sysfs = roots
    write(proc / "self" / "cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n")
    write(sysfs / "fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(sysfs / "fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n")
    write(sysfs / "fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    host = collect_host(proc=proc, sys_root=sysfs)
    assert host.memory_bytes == 2 * GIB
    assert host.cpu_count == 1


def test_version_1_without_limits(roots: tuple[Path, Path]) -> None:
    proc, sysfs = roots
    write(proc / "self" / "cgroup", "4:memory:/x\n1:cpu:/x\n")
    write(sysfs / "fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n")
    write(sysfs / "fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n")
    write(sysfs / "fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    host = collect_host(proc=proc, sys_root=sysfs)
    assert (host.memory_bytes, host.cpu_count) == (64 * GIB, usable())


def test_bus(roots: tuple[Path, Path]) -> None:
    devices = roots[1] / "bus/pci/devices"
    for address, vendor, device, pci_class in (
        ("0000:02:00.0", "0x10de", "0x2330", "0x030200"),
        ("0000:01:00.0", "0x8086", "0x1237", "0x060000"),
    ):
        write(devices / address / "vendor", vendor + "\n")
        write(devices / address / "device", device + "\n")
        write(devices / address / "class", pci_class + "\n")
    write(devices / "0000:03:00.0" / "vendor", "0x1234\n")
    found = scan_pci(roots[1])
    assert [(item.address, item.vendor, item.device, item.pci_class) for item in found] == [
        ("0000:01:00.0", 0x8086, 0x1237, 0x060000),
        ("0000:02:00.0", 0x10DE, 0x2330, 0x030200),
    ]


def test_a_host_without_a_bus_or_proc(tmp_path: Path) -> None:
    host = collect_host(proc=tmp_path / "none", sys_root=tmp_path / "none")
    assert host.pci_devices == ()
    assert host.memory_bytes == psutil.virtual_memory().total
    assert distribution_version("no-such-distribution") is None
