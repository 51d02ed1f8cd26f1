"""What the user said: frozen, every field with a default and a doc. Flags and the YAML file are generated from it."""

from inferplane.config.schema import (
    CacheConfig,
    Config,
    ModelConfig,
    PlatformConfig,
    SchedulerConfig,
    ServerConfig,
)

__all__ = ["CacheConfig", "Config", "ModelConfig", "PlatformConfig", "SchedulerConfig", "ServerConfig"]
