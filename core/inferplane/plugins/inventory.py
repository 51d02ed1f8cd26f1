"""What is installed, from packaging metadata alone. The conformance kit reads the same."""

from inferplane_api.internal.inventory import (
    API,
    CORE,
    KINDS,
    PREFIX,
    Copies,
    PluginEntry,
    admits,
    installed,
    list_copies,
    list_entry_points,
    list_leftovers,
    lowest_api,
    read_installed,
)

__all__ = [
    "API",
    "CORE",
    "KINDS",
    "PREFIX",
    "Copies",
    "PluginEntry",
    "admits",
    "installed",
    "list_copies",
    "list_entry_points",
    "list_leftovers",
    "lowest_api",
    "read_installed",
]
