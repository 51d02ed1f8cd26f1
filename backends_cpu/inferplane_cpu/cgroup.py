"""Limits that a Linux control group sets on this process (versions 1 and 2); knows no other system."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

UNLIMITED = 1 << 60
"""Version 1 writes a page-aligned near-maximum where there is no limit: anything this large is none."""


class MemoryLimit(NamedTuple):
    """Bytes."""

    limit: int
    used: int
    """Without file pages that are dropped under pressure."""

    @property
    def free(self) -> int:
        """What may still be taken."""
        return max(0, self.limit - self.used)


def memory_limits(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> list[MemoryLimit]:
    """Every group of this process that limits memory, ancestors included."""
    limits = []
    for folder in _folders("memory", mount, membership):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        if limit is not None and 0 < limit < UNLIMITED:
            limits.append(MemoryLimit(limit, max(0, used - _inactive_file(folder))))
    return limits


def cpu_quota(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> float | None:
    """Processors that the tightest group allows; None without a limit."""
    quotas = []
    for folder in _folders("cpu", mount, membership):
        fields = _text(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            quotas.append(int(fields[0]) / int(fields[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _folders(controller: str, mount: Path, membership: Path) -> list[Path]:
    """The group's folders from the leaf to the root. In a container the path may be the host's: what exists counts."""
    folders: list[Path] = []
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        roots = [mount / names, mount / controller] if names else [mount, mount / "unified"]
        leaf = Path(path.lstrip("/"))
        folders += [root / part for root in dict.fromkeys(roots) for part in (leaf, *leaf.parents)]
    return [folder for folder in folders if folder.is_dir()]


def _inactive_file(folder: Path) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
