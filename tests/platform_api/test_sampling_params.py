"""Values that float32 logits cannot bear are refused where they are said."""

from __future__ import annotations

import math

import pytest

from inferplane_api.errors import InvalidValue
from inferplane_api.sampling import SamplingParams


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {3: math.nan}}, "logit_bias"),
    ],
)
def test_an_extreme_value_names_its_field(fields: dict, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        SamplingParams(**fields)
    assert caught.value.field == field


def test_the_widest_values_are_taken() -> None:
    for penalty in (1e-4, 1e4):
        assert SamplingParams(repetition_penalty=penalty).repetition_penalty == penalty
    assert SamplingParams(logit_bias={3: math.inf, 4: -math.inf}).logit_bias
