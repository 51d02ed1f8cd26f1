"""What one conformance case is, and the ways in which it ends; knows no pytest and no device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inferplane_api.testing.torch_state import TorchState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from inferplane_api.testing.kit import Kit

LEVELS = ("core", "performance", "full")
"""Ascending: a level holds the cases of those before it."""


class Lie(AssertionError):
    """A declaration that does not hold; the message says which, and what was seen instead."""


class NotTested(Exception):
    """A case that cannot be run here; the message says why.

    elsewhere: it could be run where something is installed that is missing here, so its level is not reached.
    """

    def __init__(self, reason: str, *, elsewhere: bool = False) -> None:
        super().__init__(reason)
        self.elsewhere = elsewhere


class SlowButAllowed(UserWarning):
    """Something that takes longer than it should and is not a failure; the report shows it."""


class Case(NamedTuple):
    """One declaration and how it is proven."""

    area: str
    """"descriptor", "import", "probe", "ops", "attention", ..."""
    name: str
    """Unique in its area."""
    level: str
    claim: str
    """What the plugin says, for a message: "acme.flash declares head_size 96"."""
    run: Callable[[Kit], None]
    """Raises Lie or NotTested; any other exception is the plugin's and makes the claim a lie."""
    proves: str = ""
    """Id of the attention backend or kernel whose work a pass shows. One of which no case passed is not proven, and
    neither is the lowest level of its cases."""

    @property
    def id(self) -> str:
        """Stable from run to run: "attention/acme.flash-full-float32"."""
        return f"{self.area}/{self.name}"


def prove(case: Case, kit: Kit) -> None:
    """Run a case. Raises Lie naming the claim, also for an exception of the plugin's, or NotTested.

    A case after which torch's own settings are others is a lie, whatever it proved: the process is not the plugin's.
    """
    before = TorchState()
    try:
        case.run(kit)
    except (Lie, NotTested):
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise Lie(f"{case.claim} but raises {type(error).__name__}: {text}") from error
    finally:
        changed = before.restore_and_tell()
    if changed:
        raise Lie(f"{case.claim} but changes torch for the whole process: {'; '.join(changed)}")


def require(condition: bool, message: str) -> None:
    """Raise Lie unless the condition holds."""
    if not condition:
        raise Lie(message)


def unproven(cases: Iterable[Case], passed: Collection[str]) -> dict[str, str]:
    """Declared things of which none of the `passed` cases (ids) shows anything, each with the lowest level of its
    cases."""
    levels: dict[str, str] = {}
    for case in cases:
        if case.proves:
            lowest = levels.setdefault(case.proves, case.level)
            levels[case.proves] = min(lowest, case.level, key=LEVELS.index)
    proven = {case.proves for case in cases if case.id in passed}
    return {name: level for name, level in levels.items() if name not in proven}


def reached(level: str, open_levels: set[str], present: bool) -> str | None:
    """The highest level, up to the one that was run, with nothing failed or left out in it or below; None without a
    device to run on."""
    best = None
    for each in LEVELS[: LEVELS.index(level) + 1]:
        if not present or each in open_levels:
            break
        best = each
    return best
