"""Which platform runs: the selection table, as functions of records. Probes nothing and imports no plugin.

No silent downgrade: better hardware that is on this host and does not work refuses the start. No false alarm: without
its hardware, the same failure is a warning. Where the evidence of a failed plugin cannot be read, that is said, and it
refuses when the bus shows an accelerator that nothing else accounts for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from inferplane.errors import InferplaneError
from inferplane.host.hardware import HardwareTable, KnownHardware, shows, unaccounted_accelerators
from inferplane.plan.types import Decision, Loser
from inferplane.plugins.records import NOT_EXPOSED, FoundPlatform, LeftOut, left_out_names
from inferplane_api.spec import HostInfo, PciDevice, ProbeState, Reason

ACCELERATOR_TIER = 5

KIND = "platforms"

_FAILED = (ProbeState.BROKEN, ProbeState.INCOMPATIBLE)


class PlatformChoice(NamedTuple):
    """The platform, the record of how it was chosen, and what a person should know."""

    found: FoundPlatform
    decision: Decision
    warnings: tuple[str, ...]


class Situation(NamedTuple):
    """What selection looks at."""

    platforms: Sequence[FoundPlatform]
    host: HostInfo
    hardware: HardwareTable
    is_installed: Callable[[str], bool]
    """Whether a package is installed, usable or not."""
    left_out: Sequence[LeftOut] = ()
    """What is installed and may not be used."""


def select_platform(situation: Situation, requested: str | None) -> PlatformChoice:
    """The platform that the user asked for, or the best that is present.

    Raises InferplaneError: platform.unknown, .not_installed, .absent, .broken, .incompatible, .ambiguous, .none.
    """
    if requested is not None:
        return _select_requested(situation, requested)
    automatic = [found for found in situation.platforms if found.tier > 0]
    present = [found for found in automatic if found.state is ProbeState.PRESENT]
    best = max((found.tier for found in present), default=0)
    first = [found for found in present if found.tier == best]
    for found in automatic:
        if found.state in _FAILED and found.tier > best and (why := _may_be_here(found, situation)):
            _refuse_downgrade(found, first, why)
    if not first:
        _refuse_nothing(situation)
    if len(first) > 1:
        _refuse_tie(first)
    warnings = [_warning(found) for found in automatic if _deserves_warning(found, best)]
    if best < ACCELERATOR_TIER:
        warnings += [_suggestion(known) for known in missing_packages(situation)]
    decision = _decision(situation, first[0], "automatic", f"highest tier ({best}) among those present")
    return PlatformChoice(first[0], decision, tuple(warnings))


def missing_packages(situation: Situation) -> list[KnownHardware]:
    """Hardware that the bus shows, for which no package is installed and which no installed platform claims."""
    claimed = {vendor for found in situation.platforms if found.spec for vendor in found.spec.evidence.pci_vendors}
    return [
        known
        for known in situation.hardware.hardware
        if known.seen_on(situation.host)
        and int(known.vendor, 16) not in claimed
        and not situation.is_installed(known.package)
    ]


def _may_be_here(found: FoundPlatform, situation: Situation) -> str:
    """Why a failed platform's hardware is, or may be, on this host; "" when nothing shows it.

    With its evidence unknown the bus decides: an accelerator that no known hardware and no readable plugin accounts for
    may be the one. On a bus without such a device the failure is a warning that says "unknown": a plugin that cannot
    say what it is for would otherwise stop every start on every host that it is installed on.
    """
    if found.on_host is not None:
        return "its hardware is on this host" if found.on_host else ""
    devices = _unaccounted(situation)
    if not devices:
        return ""
    shown = ", ".join(f"{device.vendor:04x}:{device.device:04x} at {device.address}" for device in devices)
    return f"whether its hardware is on this host is unknown, and the bus shows an accelerator that may be it ({shown})"


def _unaccounted(situation: Situation) -> list[PciDevice]:
    readable = [found.spec.evidence for found in situation.platforms if found.spec is not None]
    return [
        device
        for device in unaccounted_accelerators(situation.host, situation.hardware)
        if not any(shows(evidence, device) for evidence in readable)
    ]


def explain_state(found: FoundPlatform) -> str:
    """ "platform 'acme' of acme-npu 1.2 is BROKEN: driver.version: ..."."""
    reasons = "; ".join(map(str, found.result.reasons)) or "no reason given"
    return f"platform {found.name!r} of {found.distribution} {found.version} is {found.state.value}: {reasons}"


def _select_requested(situation: Situation, requested: str) -> PlatformChoice:
    found = next((found for found in situation.platforms if found.name.lower() == requested.lower()), None)
    if found is None:
        _refuse_unknown(situation, requested)
    if found.state is not ProbeState.PRESENT:
        code = f"platform.{found.state.value.lower()}"
        raise InferplaneError(explain_state(found), code=code, remedy=remedy_for(found, situation.platforms))
    warnings = [
        _warning(other)
        for other in situation.platforms
        if other.state in _FAILED and other != found and other.on_host is not False
    ]
    decision = _decision(situation, found, "user", "--platform")
    return PlatformChoice(found, decision, tuple(warnings))


def _refuse_unknown(situation: Situation, requested: str) -> NoReturn:
    names = sorted(found.name for found in situation.platforms)
    others = left_out_names(situation.left_out, KIND)
    if (item := others.get(requested.lower())) is not None:
        raise InferplaneError(
            f"platform {requested!r} is {item.describe()}", code="platform.left_out", remedy=item.remedy
        )
    known = situation.hardware.for_platform(requested.lower())
    if known is not None and not situation.is_installed(known.package):
        visible = f"; {known.label} is visible on this host" if known.seen_on(situation.host) else ""
        raise InferplaneError(
            f"platform {requested!r} is not installed{visible}",
            code="platform.not_installed",
            remedy=f"pip install {known.package}",
        )
    near = difflib.get_close_matches(requested.lower(), [*names, *others], n=1)
    hint = f"did you mean --platform {near[0]}?" if near else "install its package; `inferplane plugins` lists them"
    if near and near[0] not in names:
        hint += f" It is {others[near[0]].describe()}; {others[near[0]].remedy}"
    message = f"platform {requested!r} is unknown; installed: {', '.join(names) or 'none'}"
    raise InferplaneError(message, code="platform.unknown", remedy=hint)


def _refuse_downgrade(found: FoundPlatform, lower: Sequence[FoundPlatform], why: str) -> NoReturn:
    message = f"{explain_state(found)}; {why}, so no slower platform is taken without being asked"
    remedy = remedy_for(found, lower)
    if found.on_host is None:
        remedy += f"; or leave it out with --disable-plugins {found.distribution}"
    raise InferplaneError(message, code=f"platform.{found.state.value.lower()}", remedy=remedy)


def _refuse_tie(first: Sequence[FoundPlatform]) -> NoReturn:
    named = " and ".join(f"{found.name!r} ({found.distribution} {found.version})" for found in first)
    flags = " or ".join(f"--platform {found.name}" for found in first)
    raise InferplaneError(
        f"platforms {named} are both present and of the same tier", code="platform.ambiguous", remedy=f"choose {flags}"
    )


def _refuse_nothing(situation: Situation) -> NoReturn:
    lines = [explain_state(found) for found in situation.platforms if found.tier > 0]
    packages = missing_packages(situation)
    lines += [f"{known.label} is visible, {known.package} is not installed" for known in packages]
    fallback = situation.hardware.any_host
    if not situation.is_installed(fallback.package):
        packages = [*packages, fallback]
    others = left_out_names(situation.left_out, KIND)
    lines += [f"platform {name!r} is {item.describe()}" for name, item in others.items()]
    remedies = [f"pip install {known.package}" for known in packages]
    remedies += dict.fromkeys(item.remedy for item in others.values())
    raise InferplaneError(
        f"no platform can run on this host: {'; '.join(lines) or 'no platform plugin is installed'}",
        code="platform.none",
        remedy=" or ".join(remedies) or "`inferplane doctor` tells what each platform lacks",
    )


def remedy_for(found: FoundPlatform, alternatives: Sequence[FoundPlatform]) -> str:
    """What to do about a platform that is not PRESENT, and the way to insist on another.

    The reasons' own hints where they say what to do, reinstalling otherwise.
    """
    parts = [f"pip install --upgrade --force-reinstall --no-deps {found.distribution}"]
    if found.state is ProbeState.ABSENT:
        parts = [reason.hint for reason in found.result.reasons if reason.hint]
    elif found.state is ProbeState.INCOMPATIBLE:
        hints = [reason.hint for reason in found.result.reasons if reason.hint]
        parts = hints or [f"pip install --upgrade {found.distribution}"]
    elif found.state is ProbeState.BROKEN:
        parts.append("see `inferplane doctor`")
    present = [other for other in alternatives if other.state is ProbeState.PRESENT and other.tier > 0]
    if present:
        insist = max(present, key=lambda other: other.tier)
        parts.append(f"or insist on another with --platform {insist.name}")
    return "; ".join(parts) or "`inferplane plugins` lists what is installed"


def _deserves_warning(found: FoundPlatform, best: int) -> bool:
    """Failures that did not refuse the start, and better hardware that is visible and out of reach."""
    if found.state in _FAILED:
        return True
    not_exposed = any(reason.code == NOT_EXPOSED for reason in found.result.reasons)
    return found.state is ProbeState.ABSENT and found.tier > best and (not_exposed or found.on_host is True)


def _warning(found: FoundPlatform) -> str:
    where = {
        True: "",
        False: " (its hardware was not seen on this host)",
        None: " (whether its hardware is on this host is unknown: what shows it could not be read)",
    }[found.on_host]
    repair = ""
    if found.state in _FAILED:
        repair = f"; remedy: {remedy_for(found, ())}; or leave it out with --disable-plugins {found.distribution}"
    return f"{explain_state(found)}{where}{repair}"


def _suggestion(known: KnownHardware) -> str:
    return f"{known.label} is visible on this host and not used: pip install {known.package}"


def _decision(situation: Situation, chosen: FoundPlatform, source: str, reason: str) -> Decision:
    losers = []
    for found in situation.platforms:
        if found != chosen:
            losers.append(Loser(id=found.name, score=found.tier, reasons=_loser_reasons(found, chosen, source)))
    return Decision(
        subject="platform",
        chosen=chosen.name,
        score=chosen.tier,
        source=source,
        reason=f"{reason}; {chosen.distribution} {chosen.version}",
        losers=tuple(losers),
    )


def _loser_reasons(found: FoundPlatform, chosen: FoundPlatform, source: str) -> tuple[Reason, ...]:
    if found.state is not ProbeState.PRESENT:
        state = Reason(code="platform.state", field="state", want=ProbeState.PRESENT.value, have=found.state.value)
        return (state, *found.result.reasons)
    if source == "user":
        return (Reason(code="selection.user", hint="another was asked for"),)
    if found.tier == 0:
        return (Reason(code="platform.tier", hint="tier 0 is never chosen automatically"),)
    return (Reason(code="platform.tier", field="tier", want=str(chosen.tier), have=str(found.tier)),)
