"""Turns a distribution's declarations into cases, one function an area; runs nothing of the plugin's here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from inferplane_api.testing.case import LEVELS
from inferplane_api.testing.declarations import declare
from inferplane_api.testing.kit import Kit
from inferplane_api.testing.plugin import Conformance

if TYPE_CHECKING:
    from inferplane_api.testing.case import Case
    from inferplane_api.testing.declarations import Declarations


def make_conformance(platform: str, distribution: str | None, level: str) -> Conformance:
    """Read the declarations and generate the cases up to a level. Raises LookupError for an unknown name."""
    declarations = declare(platform, distribution)
    folder = Path(tempfile.mkdtemp(prefix="inferplane-conformance-"))
    wanted = LEVELS[: LEVELS.index(level) + 1]
    cases = [case for case in generate(declarations) if case.level in wanted]
    return Conformance(Kit(declarations, level, folder), cases)


def generate(declarations: Declarations) -> list[Case]:
    """All cases, in the order in which a vendor wants to read them."""
    from inferplane_api.testing import (
        device_cases,
        hygiene_cases,
        memory_cases,
        model_cases,
        option_cases,
        patch_cases,
        probe_cases,
        runtime_cases,
        schema_cases,
    )

    cases = [
        *schema_cases.cases(declarations),
        *hygiene_cases.cases(declarations),
        *probe_cases.cases(declarations),
    ]
    spec = declarations.spec
    if spec is None:
        return cases
    cases += patch_cases.cases(declarations)
    if not spec.runner_seam:
        from inferplane_api.testing import attention_cases, communicator_cases, layout_cases, linear_cases, op_cases

        cases += op_cases.cases(declarations)
        cases += attention_cases.cases(declarations)
        cases += layout_cases.cases(declarations)
        cases += linear_cases.cases(declarations)
        cases += communicator_cases.cases(declarations)
        cases += device_cases.graph_cases(declarations)
        cases += runtime_cases.cases(declarations)
    cases += memory_cases.cases(declarations)
    cases += model_cases.cases(declarations)
    cases += option_cases.cases(declarations)
    cases += patch_cases.late_cases(declarations)
    return cases
