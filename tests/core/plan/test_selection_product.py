"""The selection table as a product: state x evidence x a second platform x a lesser one x what was asked.

The expectation is written from the table's words, by itself, and compared in every combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from inferplane.errors import InferplaneError
from inferplane.host.hardware import load_hardware_table
from inferplane.plan.select_platform import Situation, select_platform

Make = Callable[..., Any]

STATES = ("PRESENT", "ABSENT", "BROKEN", "INCOMPATIBLE")
FAILED = ("BROKEN", "INCOMPATIBLE")


class One(NamedTuple):
    """One platform of a combination."""

    name: str
    state: str
    evidence: bool
    tier: int = 5


class Outcome(NamedTuple):
    """A name; or the code of an error and what its message and remedy must hold."""

    chosen: str | None
    code: str = ""
    texts: tuple[str, ...] = ()
    num_warnings: int = 0


def expected(platforms: list[One], asked: str | None) -> Outcome:
    if asked is not None:
        return expected_when_asked(platforms, next(one for one in platforms if one.name == asked))
    accelerators = [one for one in platforms if one.tier == 5]
    present = [one for one in accelerators if one.state == "PRESENT"]
    lesser = [one for one in platforms if one.tier == 1]
    failed_here = [one for one in accelerators if one.state in FAILED and one.evidence]
    if not present and failed_here:
        first = failed_here[0]
        insist = ("--platform cpu",) if lesser else ()
        return Outcome(None, f"platform.{first.state.lower()}", (f"{first.name}-dist 1.2 is {first.state}", *insist))
    if len(present) > 1:
        return Outcome(None, "platform.ambiguous", tuple(f"--platform {one.name}" for one in present))
    if not present and not lesser:
        return Outcome(None, "platform.none", tuple(f"{one.name}-dist 1.2 is {one.state}" for one in accelerators))
    warned = [one for one in accelerators if one.state in FAILED]
    if not present:
        warned += [one for one in accelerators if one.state == "ABSENT" and one.evidence]
    return Outcome((present or lesser)[0].name, num_warnings=len(warned))


def expected_when_asked(platforms: list[One], one: One) -> Outcome:
    if one.state != "PRESENT":
        return Outcome(None, f"platform.{one.state.lower()}", (f"{one.name}-dist 1.2 is {one.state}",))
    others = [other for other in platforms if other.state in FAILED and other.evidence and other.name != one.name]
    return Outcome(one.name, num_warnings=len(others))


SECONDS = [None, *(One("beta", state, evidence) for state in STATES for evidence in (False, True))]
CPU = One("cpu", "PRESENT", evidence=False, tier=1)


def combinations() -> list[tuple[list[One], str | None]]:
    found = []
    for state, evidence, second, cpu in itertools.product(STATES, (False, True), SECONDS, (True, False)):
        platforms = [One("acme", state, evidence), *([second] if second else []), *([CPU] if cpu else [])]
        found += [(platforms, asked) for asked in (None, *(one.name for one in platforms))]
    return found


@pytest.mark.parametrize("asked", [None, "acme", "beta", "cpu"], ids=str)
def test_every_combination(asked: str | None, make_platform: Make, make_host: Make) -> None:
    cases = [platforms for platforms, wanted in combinations() if wanted == asked]
    assert len(cases) >= 64
    for platforms in cases:
        found = [make_platform(one.name, one.state, tier=one.tier, on_host=one.evidence) for one in platforms]
        packages = {each.distribution for each in found} | {"inferplane-cpu"}
        situation = Situation(found, make_host(), load_hardware_table(), packages.__contains__)
        outcome = expected(platforms, asked)
        where = f"{platforms} asked {asked}"
        if outcome.chosen is None:
            with pytest.raises(InferplaneError) as caught:
                select_platform(situation, asked)
            assert caught.value.code == outcome.code, where
            assert all(text in str(caught.value) for text in outcome.texts), where
            assert caught.value.remedy, where
            continue
        choice = select_platform(situation, asked)
        assert choice.found.name == outcome.chosen, where
        assert len(choice.warnings) == outcome.num_warnings, where
        assert {loser.id for loser in choice.decision.losers} == {one.name for one in platforms} - {outcome.chosen}
        assert all(loser.reasons for loser in choice.decision.losers), where
