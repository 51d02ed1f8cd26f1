"""Which hardware is visible on this host, told from the bus and device nodes alone; knows no plugin's code.

The words for hardware, and the package to suggest for each, are in the data file `pci_vendors.json` and nowhere else.
"""

from __future__ import annotations

import glob
from pathlib import Path

import msgspec

from inferplane_api.spec import Evidence, HostInfo, PciDevice

DATA = Path(__file__).with_name("pci_vendors.json")

PROCESSING_ACCELERATOR = 0x12
"""PCI base class of devices that only compute."""


_DISPLAY_WITHOUT_SCREEN = 0x0302
"""PCI class and subclass of a 3D controller, what a graphics device without an output for a screen is."""


class KnownHardware(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the data file: how to recognise the hardware and what to install for it."""

    label: str
    platform: str
    package: str
    vendor: str = ""
    classes: tuple[str, ...] = ()
    """PCI base classes that count."""
    devices: tuple[str, ...] = ()
    """PCI device ids that count whatever their class."""

    def matches(self, device: PciDevice) -> bool:
        """True when the device is of this hardware."""
        if not self.vendor or device.vendor != int(self.vendor, 16):
            return False
        by_class = any(base_class(device) == int(code, 16) for code in self.classes)
        return by_class or any(device.device == int(code, 16) for code in self.devices)

    def seen_on(self, host: HostInfo) -> bool:
        """True when the host's bus lists such a device."""
        return any(self.matches(device) for device in host.pci_devices)


class HardwareTable(msgspec.Struct, frozen=True, kw_only=True):
    """The data file."""

    hardware: tuple[KnownHardware, ...]
    any_host: KnownHardware
    """What runs anywhere."""

    def for_package(self, distribution: str) -> KnownHardware | None:
        """The hardware that an official package is for; None for anyone else's package."""
        return next((known for known in self.hardware if known.package == distribution), None)

    def for_platform(self, name: str) -> KnownHardware | None:
        """The line of an official platform's name."""
        return next((known for known in (*self.hardware, self.any_host) if known.platform == name), None)


def load_hardware_table(path: Path = DATA) -> HardwareTable:
    """Read the data file."""
    return msgspec.json.decode(path.read_bytes(), type=HardwareTable)


def base_class(device: PciDevice) -> int:
    """The upper 8 bits of the 24-bit class."""
    return device.pci_class >> 16


def shows(evidence: Evidence, device: PciDevice) -> bool:
    """True when a device matches the vendors, and the classes where any are given."""
    by_class = not evidence.pci_classes or base_class(device) in evidence.pci_classes
    return device.vendor in evidence.pci_vendors and by_class


def on_bus(evidence: Evidence, host: HostInfo) -> bool:
    """True when a device on the bus matches."""
    return any(shows(evidence, device) for device in host.pci_devices)


def unaccounted_accelerators(host: HostInfo, hardware: HardwareTable) -> list[PciDevice]:
    """Devices that only compute, and that no line of the data file is for.

    A display of an unknown vendor is none: nearly every server has one that computes nothing.
    """
    return [
        device
        for device in host.pci_devices
        if (base_class(device) == PROCESSING_ACCELERATOR or device.pci_class >> 8 == _DISPLAY_WITHOUT_SCREEN)
        and not any(line.matches(device) for line in hardware.hardware)
    ]


def has_device_node(evidence: Evidence) -> bool:
    """True when one of the device nodes exists."""
    return any(glob.glob(pattern) for pattern in evidence.device_paths)


def seen(evidence: Evidence, host: HostInfo) -> bool | None:
    """True when the bus or a device node shows the hardware on this host; None when there is nothing to look for."""
    if not evidence.pci_vendors and not evidence.device_paths:
        return None
    return on_bus(evidence, host) or has_device_node(evidence)
