"""The INFERPLANE_* environment variables: which exist, and what to say about one that does not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from inferplane.config.annotations import settings
from inferplane.config.environment import variable_of
from inferplane.plugins.records import Problem

PREFIX = "INFERPLANE_"
KNOWN = ("INFERPLANE_CACHE", "INFERPLANE_PLUGINS")
"""The ones that a message lists; a setting's variable is INFERPLANE_<FIELD>."""

_ALIKE = 0.8
"""Of the part after the prefix: a word with one letter wrong, rather than another plugin's variable."""


def unknown_variables(environ: Mapping[str, str], declared: Iterable[str], *, unread: bool = False) -> list[Problem]:
    """An error for every variable with our prefix that neither core nor an installed platform declares.

    With `unread`, a plugin that was not read may declare it: a warning, unless it is nearly a variable that exists.
    """
    listed = sorted({*KNOWN, *declared})
    known = sorted({*listed, *(variable_of(name) for name in settings())})
    problems = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            words = {each.removeprefix(PREFIX): each for each in known}
            typo = difflib.get_close_matches(name.removeprefix(PREFIX), words, n=1, cutoff=_ALIKE)
            near = [words[typo[0]]] if typo else difflib.get_close_matches(name, known, n=1)
            unset = f"unset it; known are {', '.join(listed)}, and INFERPLANE_<FLAG>"
            remedy = f"did you mean {near[0]}?" if near else unset
            level, message = "error", f"{name} is not a variable"
            if unread and not typo:
                level, message = "warning", f"{message} of what was read; a plugin that was not read may declare it"
                remedy = f"{remedy} Otherwise unset it" if near else remedy
            problems.append(Problem(level=level, code="variable.unknown", message=message, remedy=remedy))
    return problems
