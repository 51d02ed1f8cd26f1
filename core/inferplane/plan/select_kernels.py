"""Which provider runs each op, and which kernel each weight scheme: declarations, then a check, then the score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inferplane.errors import InferplaneError
from inferplane.plan.types import Component, Decision, Loser, OpBinding
from inferplane.plugins.records import FoundKernel
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import ANY_PLATFORM, DeviceInfo, KernelRequest, Reason, Verdict, unknown_requirements

ANY_SCHEME = "*"
DENSE = "dense"


class KernelNeed(NamedTuple):
    """Where the kernels run."""

    platform: str
    device: DeviceInfo
    dtype: str
    check: Callable[[str, KernelRequest], Verdict]


def select_ops(kernels: Sequence[FoundKernel], need: KernelNeed) -> tuple[tuple[OpBinding, ...], tuple[Decision, ...]]:
    """A provider for every op that the device can have called. Raises InferplaneError when one has none."""
    bindings, decisions = [], []
    for schema in SCHEMAS.values():
        if missing := schema.requires - need.device.features:
            reason = f"never called on a device without {', '.join(sorted(missing))}"
            decisions.append(Decision(subject=f"op {schema.id}", chosen="none", source="device", reason=reason))
            continue
        candidates = [found for found in kernels if found.spec.kind == "ops" and schema.id in found.spec.ops]
        chosen, decision = _select("op", schema.id, candidates, need)
        bindings.append(OpBinding(op=schema.id, provider=component(chosen)))
        decisions.append(decision)
    return tuple(bindings), tuple(decisions)


def select_linear(
    kernels: Sequence[FoundKernel], need: KernelNeed
) -> tuple[tuple[tuple[str, Component], ...], tuple[Decision, ...]]:
    """The best linear kernel of "dense", of every scheme that any kernel names, and of "*", any other scheme."""
    linear = [found for found in kernels if found.spec.kind == "linear"]
    named = sorted({scheme for found in linear for scheme in found.spec.schemes} - {ANY_SCHEME, DENSE})
    chosen_kernels, decisions = [], []
    for scheme in (DENSE, *named, ANY_SCHEME):
        candidates = [found for found in linear if scheme in found.spec.schemes or ANY_SCHEME in found.spec.schemes]
        chosen, decision = _select("linear", scheme, candidates, need)
        chosen_kernels.append((scheme, component(chosen)))
        decisions.append(decision)
    return tuple(chosen_kernels), tuple(decisions)


def component(found: FoundKernel) -> Component:
    """What a child needs to load exactly this."""
    return Component(id=found.spec.id, load=found.spec.load, distribution=found.distribution, version=found.version)


def describe_kernel_refusal(found: FoundKernel, need: KernelNeed) -> tuple[Reason, ...]:
    """Why the declarations rule a provider out."""
    spec = found.spec
    reasons = []
    if ANY_PLATFORM not in spec.platforms and need.platform not in spec.platforms:
        reasons.append(_reason("platform", need.platform, spec.platforms))
    if need.dtype not in spec.dtypes:
        reasons.append(_reason("dtype", need.dtype, spec.dtypes))
    if missing := spec.requires - need.device.features:
        reasons.append(_reason("device_feature", ", ".join(sorted(missing)), need.device.features))
    return tuple(reasons)


def _select(kind: str, name: str, candidates: Sequence[FoundKernel], need: KernelNeed) -> tuple[FoundKernel, Decision]:
    request = KernelRequest(platform=need.platform, device=need.device, dtype=need.dtype, subject=name)
    verdicts = []
    for found in candidates:
        reasons = (*unknown_requirements(request, found.api), *describe_kernel_refusal(found, need))
        if not reasons and found.spec.check is not None:
            reasons = need.check(found.spec.id, request).reasons
        verdicts.append((found, reasons))
    able = sorted(
        (found for found, reasons in verdicts if not reasons), key=lambda found: (-found.spec.score, found.spec.id)
    )
    if not able:
        lines = [f"{found.spec.id}: {'; '.join(map(str, reasons))}" for found, reasons in verdicts]
        raise InferplaneError(
            f"nothing runs {kind} {name} in {need.dtype}: {' | '.join(lines) or 'no provider is installed'}",
            code="kernel.none",
            remedy="pip install --force-reinstall --no-deps inferplane",
        )
    chosen = able[0]
    losers = [
        Loser(id=found.spec.id, score=found.spec.score, reasons=reasons or (_outscored(found, chosen),))
        for found, reasons in verdicts
        if found is not chosen
    ]
    decision = Decision(
        subject=f"{kind} {name}",
        chosen=chosen.spec.id,
        score=chosen.spec.score,
        reason=f"{chosen.distribution} {chosen.version}",
        losers=tuple(losers),
    )
    return chosen, decision


def _outscored(found: FoundKernel, chosen: FoundKernel) -> Reason:
    return Reason(code="selection.score", field="score", want=str(chosen.spec.score), have=str(found.spec.score))


def _reason(field: str, want: str, have: frozenset[str]) -> Reason:
    return Reason(code=f"kernel.{field}", field=field, want=want, have=", ".join(sorted(have)) or "none")
