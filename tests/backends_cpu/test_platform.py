"""Facts about the host: the probe's verdict, control group limits in a made-up tree, threads and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch

from inferplane_api.platform import Platform, PlatformContext
from inferplane_api.spec import DeviceInfo, HostInfo, ProbeState
from inferplane_cpu import cgroup
from inferplane_cpu import platform as platform_module
from inferplane_cpu.native.graphs import NativeGraphs
from inferplane_cpu.platform import CPUMemory, CPUPlatform, usable_threads
from inferplane_cpu.probe import probe

GIB = 2**30


def test_quantized_weights_are_dequantized_on_demand() -> None:
    facts: dict[str, Any] = {"os": "linux", "machine": "x86_64", "cpu_model": "A CPU", "cpu_flags": frozenset()}
    (device,) = probe(HostInfo(**facts, options={"weights": "dequantized"})).devices
    assert "packed_weights" not in device.features
    refused = probe(HostInfo(**facts, options={"weights": "thin"}))
    assert refused.state is ProbeState.INCOMPATIBLE
    assert "platform_option.weights wants packed or dequantized, has thin" in str(refused.reasons[0])


@pytest.mark.parametrize(
    ("machine", "flags", "arch", "preferred"),
    [
        ("x86_64", {"avx2", "fma"}, "avx2", "float32"),
        ("x86_64", {"avx2", "avx512f"}, "avx512", "float32"),
        ("AMD64", {"avx2", "avx512f", "avx512_bf16"}, "avx512_bf16", "bfloat16"),
        ("x86_64", {"avx512f", "avx512_bf16", "amx_bf16", "amx_tile"}, "amx", "bfloat16"),
        ("aarch64", {"asimd", "fp"}, "neon", "float32"),
        ("arm64", {"asimd", "sve", "bf16"}, "sve", "bfloat16"),
        ("x86_64", set(), "x86_64", "float32"),
    ],
)
def test_probe_tells_the_instruction_set(machine: str, flags: set[str], arch: str, preferred: str) -> None:
    result = probe(HostInfo(os="linux", machine=machine, cpu_model="A CPU", cpu_flags=frozenset(flags)))
    assert result.state is ProbeState.PRESENT
    (device,) = result.devices
    assert (device.arch, device.preferred_dtype, device.name) == (arch, preferred, "A CPU")
    native = {"native_kernels", "graph_capture", "packed_weights"}
    assert device.features == {"in_place_kv_write", "unified_memory"} | native
    assert preferred in device.dtypes


def test_a_build_without_the_native_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferplane_cpu.probe.library_path", lambda: None)
    host = HostInfo(os="linux", machine="x86_64")
    (device,) = probe(host).devices
    assert device.features == {"in_place_kv_write", "unified_memory"}
    refused = probe(msgspec.structs.replace(host, options={"isa": "avx2"}))
    assert refused.state is ProbeState.INCOMPATIBLE
    assert "no native kernels" in str(refused.reasons[0])


def test_the_platform_captures_where_it_has_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = CPUPlatform(PlatformContext(DeviceInfo(), {}, num_threads=1))
    assert isinstance(platform.graphs(), NativeGraphs)
    monkeypatch.setattr(platform_module, "library_path", lambda: None)
    assert platform.graphs() is None


def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    result = probe(HostInfo(os="linux", machine="x86_64", options={"isa": "vax"}))
    assert result.state is ProbeState.INCOMPATIBLE
    assert "vax" in str(result.reasons[0])
    assert "portable" in str(result.reasons[0])


def test_another_machine_is_absent_with_a_reason() -> None:
    result = probe(HostInfo(os="linux", machine="s390x"))
    assert result.state is ProbeState.ABSENT
    assert result.reasons[0].have == "s390x"


def test_descriptor_and_probe_import_no_torch() -> None:
    code = "import sys, inferplane_cpu.descriptor, inferplane_cpu.probe; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def unified(tmp_path: Path) -> tuple[Path, Path]:
    """Version 2: a leaf with a large limit in a parent with a small one."""
    mount, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("0::/pod/leaf\n")
    write(mount, memory__current=str(9 * GIB))
    write(mount / "pod", memory__max=str(3 * GIB), memory__current=str(2 * GIB), cpu__max="250000 100000")
    write(mount / "pod", memory__stat=f"anon 1\ninactive_file {GIB}\n")
    write(mount / "pod/leaf", memory__max=str(4 * GIB), memory__current=str(GIB // 2), cpu__max="max 100000")
    return mount, membership


@pytest.fixture
def legacy(tmp_path: Path) -> tuple[Path, Path]:
    """Version 1: a folder a controller; the path inside the container does not exist under the mount."""
    mount, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n")
    write(mount / "memory", memory__limit_in_bytes=str(2 * GIB), memory__usage_in_bytes=str(GIB))
    write(mount / "memory", memory__stat=f"total_inactive_file {GIB // 4}\n")
    write(mount / "cpu,cpuacct", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    return mount, membership


def test_limits_of_version_2(unified: Any) -> None:
    limits = sorted(cgroup.memory_limits(*unified))
    assert [limit.limit for limit in limits] == [3 * GIB, 4 * GIB]
    assert [limit.free for limit in limits] == [2 * GIB, 3 * GIB + GIB // 2]
    assert cgroup.cpu_quota(*unified) == 2.5


def test_limits_of_version_1(legacy: Any) -> None:
    (limit,) = cgroup.memory_limits(*legacy)
    assert limit.limit == 2 * GIB
    assert limit.free == GIB + GIB // 4
    assert cgroup.cpu_quota(*legacy) == 1.5


@pytest.mark.parametrize("quota", ["-1", "0"])
def test_no_limit_is_none(tmp_path: Path, quota: str) -> None:
    mount, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("4:memory:/\n3:cpu:/\n")
    write(mount / "memory", memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="5")
    write(mount / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert cgroup.memory_limits(mount, membership) == []
    assert cgroup.cpu_quota(mount, membership) is None
    assert cgroup.memory_limits(mount, tmp_path / "nothing") == []


def test_memory_is_the_tighter_of_system_and_container(unified: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: system._replace(total=64 * GIB, available=50 * GIB))
    assert (CPUMemory(*unified).free(), CPUMemory(*unified).total()) == (2 * GIB, 3 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: system._replace(total=2 * GIB, available=GIB))
    assert (CPUMemory(*unified).free(), CPUMemory(*unified).total()) == (GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("allowed", "cores", "quota", "variable", "expected"),
    [
        (8, 4, "max 100000", None, 4),
        (3, 16, "max 100000", None, 3),
        (8, 8, "250000 100000", None, 3),
        (8, 8, "10000 100000", None, 1),
        (6, None, "max 100000", None, 6),
        (8, 8, "max 100000", "2", 2),
        (8, 8, "max 100000", "many", 8),
    ],
)
def test_threads_are_the_tightest_of_mask_cores_quota_and_variable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
    cores: int | None,
    quota: str,
    variable: str | None,
    expected: int,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    write(tmp_path / "cgroup", cpu__max=quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: cores)
    assert usable_threads(tmp_path / "cgroup", membership) == expected


def test_the_users_thread_count_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(platform_module, "keep_freed_memory", lambda: True)
    platform = CPUPlatform(PlatformContext(DeviceInfo(), {}, num_threads=3))
    platform.runtime.activate()
    CPUPlatform(PlatformContext(DeviceInfo(), {})).runtime.activate()
    assert chosen == [3, usable_threads()]
    assert isinstance(platform, Platform)
    assert platform.device == torch.device("cpu")
    assert platform.create_runner(None) is None  # type: ignore[arg-type, func-returns-value]


@pytest.mark.skipif(not platform_module.PROC_STATUS.exists(), reason="needs procfs")
def test_peak_sees_memory_that_is_gone_and_can_be_reset() -> None:
    code = """
import torch
from inferplane_cpu.platform import CPUMemory
memory = CPUMemory()
before = memory.peak()
block = torch.ones(2**28, dtype=torch.uint8)
del block
high = memory.peak()
memory.reset_peak()
print(before, high, memory.peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, high, after = map(int, done.stdout.split())
    assert high - before >= 2**28 - 2**24
    assert after < high or not os.access(platform_module.PROC_CLEAR_REFS, os.W_OK)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_freed_blocks_are_used_again_without_new_page_faults() -> None:
    code = """
import resource, torch
from inferplane_cpu.allocator import keep_freed_memory
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**22, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(keep_freed_memory())
faults()
print(faults())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken, faults = done.stdout.split()
    if taken == "True":
        assert int(faults) < 2**22 // 4096, "20 blocks of 1024 pages would fault 20480 times"
