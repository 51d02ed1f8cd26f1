"""What counts as hardware on this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplane.host.hardware import load_hardware_table, on_bus, seen
from inferplane_api.spec import Evidence, HostInfo, PciDevice


def host(*devices: tuple[int, int, int]) -> HostInfo:
    listed = tuple(PciDevice(address=str(n), vendor=v, device=d, pci_class=c) for n, (v, d, c) in enumerate(devices))
    return HostInfo(os="linux", machine="x86_64", pci_devices=listed)


@pytest.mark.parametrize(
    ("device", "package"),
    [
        ((0x10DE, 0x2330, 0x030200), "inferplane-cuda"),
        ((0x1002, 0x74A1, 0x120000), "inferplane-rocm"),
        ((0x8086, 0x56C0, 0x038000), "inferplane-xpu"),
        ((0x1AE0, 0x0063, 0x088000), "inferplane-tpu"),
        ((0x10DE, 0x22BC, 0x040300), None),  # the sound function of a graphics card
        ((0x8086, 0x1237, 0x060000), None),  # a bridge
        ((0x1AE0, 0x0042, 0x020000), None),  # a virtual network card of the same vendor
        ((0x1234, 0x1111, 0x030000), None),  # an emulated display
    ],
)
def test_known_hardware(device: tuple[int, int, int], package: str | None) -> None:
    table = load_hardware_table()
    assert [known.package for known in table.hardware if known.seen_on(host(device))] == ([package] if package else [])


def test_table_by_name() -> None:
    table = load_hardware_table()
    for known in table.hardware:
        assert table.for_package(known.package) == table.for_platform(known.platform) == known
    assert table.for_platform("cpu") == table.any_host
    assert table.for_package("acme-npu") is None


def test_evidence_on_the_bus_honours_classes() -> None:
    card = host((0x1E52, 1, 0x120000))
    assert on_bus(Evidence(pci_vendors=(0x1E52,)), card)
    assert on_bus(Evidence(pci_vendors=(0x1E52,), pci_classes=(0x12,)), card)
    assert not on_bus(Evidence(pci_vendors=(0x1E52,), pci_classes=(0x03,)), card)
    assert not on_bus(Evidence(), card)


def test_a_device_node_is_evidence(tmp_path: Path) -> None:
    evidence = Evidence(device_paths=(f"{tmp_path}/npu*",))
    assert not seen(evidence, host())
    (tmp_path / "npu0").touch()
    assert seen(evidence, host())
