"""What the user said: frozen, every field with a default and a doc. Flags and the YAML file are generated from it.

The schema is imported when it is used: a command without settings starts in half the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["CacheConfig", "Config", "ModelConfig", "PlatformConfig", "SchedulerConfig", "ServerConfig"]

if TYPE_CHECKING:
    from inferplane.config.schema import (
        CacheConfig,
        Config,
        ModelConfig,
        PlatformConfig,
        SchedulerConfig,
        ServerConfig,
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inferplane.config import schema

    return getattr(schema, name)
