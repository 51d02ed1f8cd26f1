"""Area "import": importing a descriptor and running a probe leave no trace in the process and cost next to nothing."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING

from inferplane_api.testing.case import Case, Lie, SlowButAllowed, require
from inferplane_api.testing.declarations import inspect_plugin

if TYPE_CHECKING:
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit
    from inferplane_api.testing.observed import Observation

EXPECTED_SECONDS = 0.05
LONGEST_SECONDS = 1.0

ASPECTS = {
    "modules": "imports only the contract, the standard library and pure Python",
    "environment": "changes nothing of the process",
    "threads": "leaves no thread",
    "stdout": "prints nothing",
    "seconds": f"takes less than {LONGEST_SECONDS:.0f} s",
}


def cases(declarations: Declarations) -> list[Case]:
    """Five cases a descriptor module and a probe."""
    return [
        Case(
            area="import",
            name=f"{seen.stage}-{aspect}-{seen.subject}",
            level="core",
            claim=f"{seen.stage} {seen.subject} {promise}",
            run=partial(_check, declarations, seen, aspect),
        )
        for inspection, stage in ((declarations.inspection, "descriptor"), (declarations.probing, "probe"))
        for seen in inspection.seen.observations
        if seen.stage == stage
        for aspect, promise in ASPECTS.items()
    ]


def _check(declarations: Declarations, seen: Observation, aspect: str, kit: Kit) -> None:
    what = f"{seen.stage} {seen.subject}"
    if aspect == "modules":
        require(not seen.modules, f"{what} imports {', '.join(seen.modules)}")
    elif aspect == "environment":
        require(not seen.environment, f"{what} changes {', '.join(seen.environment)}")
    elif aspect == "threads":
        require(not seen.threads, f"{what} leaves threads: {', '.join(seen.threads)}")
    elif aspect == "stdout":
        require(not seen.stdout, f"{what} prints on stdout: {seen.stdout.strip()!r}")
    else:
        _check_time(declarations, seen, what)


def _check_time(declarations: Declarations, seen: Observation, what: str) -> None:
    seconds = seen.seconds
    if seconds > LONGEST_SECONDS:
        # A cold disk or a crowded host is nobody's lie: the second time counts.
        again = inspect_plugin(declarations.plugin, declarations.host, probe=True).seen.observations
        same = [each.seconds for each in again if (each.stage, each.subject) == (seen.stage, seen.subject)]
        seconds = min([seconds, *same])
    if seconds > LONGEST_SECONDS:
        raise Lie(f"{what} takes {seconds:.2f} s; {EXPECTED_SECONDS:.2f} s is the aim")
    if seconds > EXPECTED_SECONDS:
        message = f"{what} takes {1000 * seconds:.0f} ms, the aim is {1000 * EXPECTED_SECONDS:.0f} ms"
        warnings.warn(message, SlowButAllowed, stacklevel=2)
