"""Which attention backend serves each KV group: data first, then a backend's own check, then the score."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.geometry import LayerGroup
from inferplane.plan.types import Decision, Loser
from inferplane.plugins.records import FoundAttention, LeftOut, Refused, left_out_names
from inferplane_api.spec import AttentionRequest, Reason, Verdict, describe_attention_refusal, unknown_requirements

FIELD = "attention_backend"

Check = Callable[[str, AttentionRequest], Verdict]


class GroupNeed(NamedTuple):
    """One KV group and what it asks."""

    group: LayerGroup
    request: AttentionRequest
    takes_pages: Callable[[FoundAttention], Reason | None]
    """Why a backend's page sizes do not suit the page that the user fixed; None when they do."""


class Offer(NamedTuple):
    """What is installed, and how ties are broken."""

    backends: Sequence[FoundAttention]
    refused: Sequence[Refused]
    """Attention entries whose descriptor could not be used."""
    preference: Sequence[str]
    check: Check
    left_out: Sequence[LeftOut] = ()
    """What is installed and may not be used."""


class AttentionChoice(NamedTuple):
    """A group's backend and the record of its choice."""

    found: FoundAttention
    decision: Decision


def select_attention(needs: Sequence[GroupNeed], offer: Offer, asked: str | None) -> list[AttentionChoice]:
    """One backend a group. `asked` is an id, a unique short name or an alias, for all groups; or KIND=NAME[,KIND=NAME]
    for the groups of a kind, the others being chosen automatically.

    Raises InvalidValue naming the group that the asked backend cannot serve, its reasons and the ids that could;
    InferplaneError when a group has no backend at all.
    """
    wanted = _wanted(asked, needs, offer) if asked is not None else {}
    return [_select(need, offer, wanted.get(need.group.kind)) for need in needs]


def find_backend(name: str, offer: Offer) -> FoundAttention:
    """The backend that a user means, whatever the case. Raises InvalidValue for an unknown or an ambiguous name."""
    lower = name.lower()
    for matches in (
        [found for found in offer.backends if found.spec.id.lower() == lower],
        [found for found in offer.backends if lower in _aliases(found)],
        [found for found in offer.backends if found.spec.id.lower().partition(".")[2] == lower],
    ):
        if len(matches) > 1:
            ids = ", ".join(sorted(found.spec.id for found in matches))
            raise InvalidValue(FIELD, name, f"means more than one of {ids}", remedy="give the whole id")
        if matches:
            return matches[0]
    for refused in offer.refused:
        if lower in (refused.name.lower(), refused.name.lower().partition(".")[2]):
            owner = f"{refused.distribution} {refused.version}"
            problem = f"of {owner} is {refused.state.value}: {refused.reason}"
            raise InvalidValue(
                FIELD, name, problem, remedy=f"pip install --upgrade --force-reinstall {owner.split()[0]}"
            )
    others = left_out_names(offer.left_out, "attention")
    for id, item in others.items():
        if lower in (id, id.partition(".")[2]):
            raise InvalidValue(FIELD, name, f"is {item.describe()}", remedy=item.remedy)
    names = sorted(found.spec.id for found in offer.backends)
    known = [*names, *sorted({alias for found in offer.backends for alias in found.spec.aliases})]
    near = difflib.get_close_matches(lower, [*(text.lower() for text in known), *others], n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "install the package that brings it"
    if near and near[0] in others:
        remedy += f" It is {others[near[0]].describe()}; {others[near[0]].remedy}"
    raise InvalidValue(
        FIELD, name, f"no such attention backend; installed: {', '.join(names) or 'none'}", remedy=remedy
    )


def _wanted(asked: str, needs: Sequence[GroupNeed], offer: Offer) -> Mapping[str, FoundAttention]:
    """Kind of group to the backend that the user wants for it."""
    kinds = list(dict.fromkeys(need.group.kind for need in needs))
    if "=" not in asked:
        found = find_backend(asked, offer)
        return dict.fromkeys(kinds, found)
    wanted: dict[str, FoundAttention] = {}
    for part in asked.split(","):
        kind, _, name = part.strip().partition("=")
        if kind not in kinds:
            have = ", ".join(kinds)
            raise InvalidValue(FIELD, asked, f"the model has no layers of kind {kind!r}", remedy=f"it has {have}")
        wanted[kind] = find_backend(name, offer)
    return wanted


def _select(need: GroupNeed, offer: Offer, wanted: FoundAttention | None) -> AttentionChoice:
    verdicts = [(found, _verdict(found, need, offer.check)) for found in offer.backends]
    able = sorted(
        (found for found, verdict in verdicts if verdict.ok), key=lambda found: _rank(found, offer.preference)
    )
    if wanted is not None and wanted not in able:
        _refuse_wanted(need, wanted, verdicts, able)
    if not able:
        _refuse_all(need, verdicts)
    chosen = wanted if wanted is not None else able[0]
    losers = [_loser(found, verdict, chosen, wanted is not None) for found, verdict in verdicts if found is not chosen]
    decision = Decision(
        subject=f"attention {need.group.label}",
        chosen=chosen.spec.id,
        score=chosen.spec.score,
        source="user" if wanted is not None else "automatic",
        reason=f"{chosen.distribution} {chosen.version}",
        losers=tuple(losers),
    )
    return AttentionChoice(chosen, decision)


def _verdict(found: FoundAttention, need: GroupNeed, check: Check) -> Verdict:
    """What it cannot know of, its data, the page sizes; then its own check, which is not asked what these refuse."""
    unknown = unknown_requirements(need.request, found.api)
    verdict = describe_attention_refusal(found.spec, need.request)
    pages = need.takes_pages(found)
    reasons = (*unknown, *verdict.reasons, *((pages,) if pages is not None else ()))
    if reasons:
        return Verdict(reasons)
    return check(found.spec.id, need.request)


def _rank(found: FoundAttention, preference: Sequence[str]) -> tuple[int, int, str]:
    """Sort key: the best score, then the platform's preference, then the id."""
    id = found.spec.id
    return -found.spec.score, preference.index(id) if id in preference else len(preference), id


def _loser(found: FoundAttention, verdict: Verdict, chosen: FoundAttention, by_user: bool) -> Loser:
    reasons = verdict.reasons or (_why_not(found, chosen, by_user),)
    return Loser(id=found.spec.id, score=found.spec.score, reasons=reasons)


def _why_not(found: FoundAttention, chosen: FoundAttention, by_user: bool) -> Reason:
    if by_user:
        return Reason(code="selection.user", hint="another was asked for")
    if found.spec.score != chosen.spec.score:
        want, have = str(chosen.spec.score), str(found.spec.score)
        return Reason(code="selection.score", field="score", want=want, have=have)
    return Reason(code="selection.preference", hint="same score; the platform's preference or the id decides")


def _refuse_wanted(
    need: GroupNeed,
    wanted: FoundAttention,
    verdicts: Sequence[tuple[FoundAttention, Verdict]],
    able: Sequence[FoundAttention],
) -> None:
    verdict = next(verdict for found, verdict in verdicts if found is wanted)
    reasons = "; ".join(map(str, verdict.reasons))
    problem = f"of {wanted.distribution} {wanted.version} cannot run {need.group.label}: {reasons}"
    ids = ", ".join(found.spec.id for found in able)
    remedy = (
        f"for {need.group.label} one of: {ids}; KIND=NAME asks for one kind of layers only"
        if ids
        else ("no installed attention backend can run it")
    )
    raise InvalidValue(FIELD, wanted.spec.id, problem, remedy=remedy)


def _refuse_all(need: GroupNeed, verdicts: Sequence[tuple[FoundAttention, Verdict]]) -> None:
    lines = [f"{found.spec.id}: {'; '.join(map(str, verdict.reasons))}" for found, verdict in verdicts]
    raise InferplaneError(
        f"no attention backend can run {need.group.label}: {' | '.join(lines) or 'none is installed'}",
        code="attention.none",
        remedy="another --dtype, --kv-cache-dtype or --block-size, or a package with a backend that can",
    )


def _aliases(found: FoundAttention) -> set[str]:
    return {alias.lower() for alias in found.spec.aliases}
