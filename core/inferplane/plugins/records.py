"""What discovery found, as records that selection reads; holds no logic of choice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from inferplane_api import API_VERSION
from inferplane_api.spec import (
    AttentionSpec,
    KernelSpec,
    LogitsProcessorSpec,
    ModelPluginSpec,
    PlatformSpec,
    ProbeResult,
    ProbeState,
    Reason,
    WeightFormatSpec,
)

SpecT = TypeVar("SpecT")

UNKNOWN_TIER = 5
"""A platform whose descriptor could not be read counts as an accelerator: better a question than a slow server."""

DISABLED, NOT_LISTED, NOT_LOCKED = "plugin.disabled", "plugin.not_listed", "plugin.not_locked"
"""Codes of the reasons for leaving out what is installed."""

NOT_EXPOSED = "device.not_exposed"
"""Code of the reason: hardware on the bus without device nodes."""


class Found(msgspec.Struct, Generic[SpecT], frozen=True, kw_only=True):
    """A descriptor and the distribution it came from."""

    spec: SpecT
    distribution: str
    version: str
    api: str = API_VERSION
    """The oldest contract that the distribution admits: fields of a request that are newer are unknown to it."""


class HookPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the group `inferplane.plugins`, and which hooks it implements."""

    name: str
    load: str
    """"module:attribute", or a module."""
    hooks: frozenset[str]


FoundHooks = Found[HookPlugin]
FoundAttention = Found[AttentionSpec]
FoundKernel = Found[KernelSpec]
FoundFormat = Found[WeightFormatSpec]
FoundModel = Found[ModelPluginSpec]
FoundProcessor = Found[LogitsProcessorSpec]


class FoundPlatform(msgspec.Struct, frozen=True, kw_only=True):
    """A platform, and what its probe said or why there was none."""

    name: str
    distribution: str
    version: str
    spec: PlatformSpec | None = None
    """None when the descriptor could not be read."""
    result: ProbeResult
    on_host: bool | None = False
    """Whether the bus or a device node shows its hardware on this host; None: unknown, since its evidence could not be
    read, or it declares none."""

    @property
    def state(self) -> ProbeState:
        """The probe's state."""
        return self.result.state

    @property
    def tier(self) -> int:
        """The declared tier."""
        return UNKNOWN_TIER if self.spec is None else self.spec.tier


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """An entry point that is not a platform and whose descriptor cannot be used."""

    group: str
    name: str
    distribution: str
    version: str
    state: ProbeState
    """BROKEN or INCOMPATIBLE."""
    reason: Reason


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed and may not be used: the mode or the user's lists leave it out."""

    distribution: str
    version: str
    names: tuple[str, ...]
    """Of its entry points, those that are left out."""
    kinds: tuple[str, ...] = ()
    """The kind of each name: "platforms", "attention", ..."""
    reason: Reason
    """plugin.disabled, plugin.not_listed or plugin.not_locked; its hint says by what."""
    named: str = ""
    """What the deny-list calls it; "": the distribution."""

    @property
    def remedy(self) -> str:
        """How to use it after all."""
        if self.reason.code == NOT_LOCKED:
            return "`inferplane plugins lock` accepts what is installed"
        if self.reason.code == DISABLED:
            return f"take {self.named or self.distribution} off --disable-plugins"
        return f"add {self.distribution} to --plugins or INFERPLANE_PLUGINS"

    def describe(self) -> str:
        """ "installed (acme-npu 1.2) and left out by --disable-plugins"."""
        return f"installed ({self.distribution} {self.version}) and left out: {self.reason.hint}"

    def names_of(self, kind: str) -> list[str]:
        """The names of one kind."""
        return [name for name, its_kind in zip(self.names, self.kinds, strict=False) if its_kind == kind]


def left_out_names(left_out: Iterable[LeftOut], kind: str) -> dict[str, LeftOut]:
    """Name of an entry point of this kind, in lower case, to what brings it and is left out."""
    return {name.lower(): item for item in left_out for name in item.names_of(kind)}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with the installation or its settings: an error stops a start, a warning is logged."""

    level: str
    """"error" or "warning"."""
    code: str
    message: str
    remedy: str = ""
