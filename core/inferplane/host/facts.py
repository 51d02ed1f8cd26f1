"""Facts about the host: processor, memory, devices on the bus, torch's version. The conformance kit reads the same."""

from inferplane_api.internal.host_facts import collect_host, distribution_version, scan_pci

__all__ = ["collect_host", "distribution_version", "scan_pci"]
