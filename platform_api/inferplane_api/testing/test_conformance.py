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
    start, proven = time.perf_counter(), True
    line = {"id": case.id, "area": case.area, "level": case.level, "outcome": "passed", "reason": ""}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", SlowButAllowed)
            prove(case, kit)
        line["reason"] = "; ".join(str(warning.message) for warning in caught)
    except NotTested as reason:
        line.update(outcome="skipped", reason=str(reason))
        proven = not reason.elsewhere
        pytest.skip(str(reason))
    except Lie as lie:
        line.update(outcome="failed", reason=str(lie))
        if lie.__cause__ is not None:
            raise
        pytest.fail(str(lie), pytrace=False)
    finally:
        seconds = round(time.perf_counter() - start, 4)
        request.node.user_properties.append((PROPERTY, json.dumps([{**line, "seconds": seconds}, proven])))
