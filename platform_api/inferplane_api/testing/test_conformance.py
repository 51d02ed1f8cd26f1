"""The module that `--pyargs inferplane_api.testing` collects: one test a case."""

from __future__ import annotations

import json
import time
import warnings
from typing import TYPE_CHECKING

import pytest

from inferplane_api.testing.case import Lie, NotTested, SlowButAllowed, prove
from inferplane_api.testing.plugin import KEY, PROPERTY

if TYPE_CHECKING:
    from inferplane_api.testing.case import Case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test a case; none without `--inferplane-platform`."""
    conformance = metafunc.config.stash.get(KEY, None)
    cases = [] if conformance is None else conformance.cases
    metafunc.parametrize("case", [pytest.param(case, id=case.id) for case in cases])


def test_conformance(case: Case, request: pytest.FixtureRequest) -> None:
    """Prove one declaration."""
    kit = request.config.stash[KEY].kit
    start, skip, lie = time.perf_counter(), None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SlowButAllowed)
        try:
            prove(case, kit)
        except NotTested as reason:
            skip = reason
        except Lie as found:
            lie = found
    line = {
        "id": case.id,
        "area": case.area,
        "level": case.level,
        "outcome": "skipped" if skip else "failed" if lie else "passed",
        "reason": str(skip or lie or "; ".join(str(warning.message) for warning in caught)),
        "seconds": round(time.perf_counter() - start, 4),
    }
    proven = skip is None or not skip.elsewhere
    request.node.user_properties.append((PROPERTY, json.dumps([line, proven])))
    if skip is not None:
        pytest.skip(str(skip))
    if lie is not None and lie.__cause__ is not None:
        raise lie  # with the plugin's own traceback
    if lie is not None:
        pytest.fail(str(lie), pytrace=False)
