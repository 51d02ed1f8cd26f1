"""Whether a backend or a kernel can be tried on the device at hand; and the case of what it requires of any device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from inferplane_api.spec import KernelRequest, Verdict
from inferplane_api.testing.case import Case, Lie, NotTested, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.spec import AttentionRequest, AttentionSpec, KernelSpec
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit


def requirement_cases(declarations: Declarations, area: str, spec: AttentionSpec | KernelSpec) -> list[Case]:
    """One case where device features are required."""
    if not spec.requires:
        return []
    claim = f"{spec.id} requires {', '.join(sorted(spec.requires))} of the device"
    return [Case(area=area, name=f"{spec.id}-requires", level="core", claim=claim, run=partial(_check, claim, spec))]


def _check(claim: str, spec: AttentionSpec | KernelSpec, kit: Kit) -> None:
    declarations = kit.declarations
    missing = sorted(spec.requires - kit.device.features)
    if not missing:
        return
    reason = f"{claim}, and {kit.device.name or 'the device'} has no {', '.join(missing)}"
    if declarations.plugin is declarations.owner and not spec.requires <= declarations.device_features:
        # Whoever ships both knows both: nothing of this backend could ever run on this platform.
        names = f"the probe's devices nor the features of platform {declarations.platform}"
        never = sorted(spec.requires - declarations.device_features)
        raise Lie(f"{claim}, and neither {names} of the same distribution have {', '.join(never)}: nothing can use it")
    raise NotTested(reason)


def refuse_device(spec: AttentionSpec | KernelSpec, dtype: str, kit: Kit) -> None:
    """Raise NotTested where the device, rather than the kernel, lacks a type or a feature."""
    if dtype not in kit.device.dtypes:
        raise NotTested(f"the device does not compute in {dtype}")
    missing = spec.requires - kit.device.features
    if missing:
        raise NotTested(f"{spec.id} requires device features that are not here: {', '.join(sorted(missing))}")


def check_of(spec: AttentionSpec, kit: Kit) -> Callable[[AttentionRequest], Verdict]:
    """The backend's own check; yes where it has none."""
    if spec.check is None:
        return lambda request: Verdict()
    function = kit.load(spec.check)

    def check(request: AttentionRequest) -> Verdict:
        verdict = function(request)
        require(isinstance(verdict, Verdict), f"{spec.id}: its check returns a {type(verdict).__name__}, not a Verdict")
        return verdict  # type: ignore[no-any-return]  # the plugin's function has no types here

    return check


def accept_kernel(spec: KernelSpec, dtype: str, subject: str, kit: Kit) -> None:
    """Raise NotTested where the device, or the kernel's own check of an op or a scheme on it, rules it out."""
    refuse_device(spec, dtype, kit)
    if spec.check is None:
        return
    request = KernelRequest(platform=kit.declarations.platform, device=kit.device, dtype=dtype, subject=subject)
    verdict = kit.load(spec.check)(request)
    require(isinstance(verdict, Verdict), f"{spec.id}: its check returns a {type(verdict).__name__}, not a Verdict")
    if not verdict.ok:
        raise NotTested(f"its own check refuses this: {'; '.join(map(str, verdict.reasons))}")
