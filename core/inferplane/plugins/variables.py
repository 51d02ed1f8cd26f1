"""The INFERPLANE_* environment variables: which exist, and what to say about one that does not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from inferplane.plugins.records import Problem

PREFIX = "INFERPLANE_"
KNOWN = ("INFERPLANE_API_KEY", "INFERPLANE_CACHE", "INFERPLANE_LOG_LEVEL", "INFERPLANE_PLUGINS")


def unknown_variables(environ: Mapping[str, str], declared: Iterable[str]) -> list[Problem]:
    """An error for every variable with our prefix that neither core nor an installed platform declares."""
    known = sorted({*KNOWN, *declared})
    problems = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"unset it; known are {', '.join(known)}"
            problems.append(
                Problem(level="error", code="variable.unknown", message=f"{name} is not a variable", remedy=remedy)
            )
    return problems
