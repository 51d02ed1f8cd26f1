"""Which type weights, activations and cache have on a device. Knows types by name only."""

from __future__ import annotations

from typing import NamedTuple

from inferplane.errors import InvalidValue
from inferplane.plan.types import Decision
from inferplane_api.spec import DeviceInfo

HALF = ("bfloat16", "float16")


class DtypeChoice(NamedTuple):
    """A type, its record, and a warning where numbers change in a way that a user may not expect."""

    dtype: str
    decision: Decision
    warning: str | None = None


def choose_dtype(
    asked: str, checkpoint: str, device: DeviceInfo, *, source: str = "user", reason: str = "--dtype"
) -> DtypeChoice:
    """The type of weights and activations. `source` and `reason` tell who asked.

    `auto`: what the device prefers; else 16-bit checkpoints keep their type and float32 ones become the device's
    16 bit. A type that the device lacks becomes another 16 bit or float32, with a warning. An explicit type that the
    device lacks raises InvalidValue naming what it has.
    """
    if asked != "auto":
        if asked not in device.dtypes:
            remedy = f"{device.name or 'the device'} has {_listed(device)}"
            raise InvalidValue("dtype", asked, "the device does not compute in it", remedy=remedy)
        return _choice(asked, source, reason)
    if device.preferred_dtype is not None and device.preferred_dtype in device.dtypes:
        return _choice(device.preferred_dtype, "device", f"preferred; the checkpoint is {checkpoint}")
    if checkpoint not in HALF:
        half = next((dtype for dtype in HALF if dtype in device.dtypes), "float32")
        return _choice(
            half, "device", f"the checkpoint is {checkpoint}; `auto` computes in 16 bit where the device can"
        )
    if checkpoint in device.dtypes:
        return _choice(checkpoint, "checkpoint", "16 bit stays")
    other = next((dtype for dtype in HALF if dtype in device.dtypes), "float32")
    reason = f"the checkpoint is {checkpoint}, which the device lacks (it has {_listed(device)})"
    return _choice(other, "device", reason, warning=f"computing in {other}: {reason}")


def choose_kv_dtype(asked: str, dtype: str, *, source: str = "user", reason: str = "--kv-cache-dtype") -> DtypeChoice:
    """The type of cached keys and values: the activations' unless something else was asked for, as `source` tells."""
    if asked == "auto":
        return DtypeChoice(dtype, Decision(subject="kv dtype", chosen=dtype, reason="as the activations"))
    return DtypeChoice(asked, Decision(subject="kv dtype", chosen=asked, source=source, reason=reason))


def _choice(dtype: str, source: str, reason: str, warning: str | None = None) -> DtypeChoice:
    return DtypeChoice(dtype, Decision(subject="dtype", chosen=dtype, source=source, reason=reason), warning)


def _listed(device: DeviceInfo) -> str:
    return ", ".join(sorted(device.dtypes))
