"""What a step should take is learnt from the slowest recent step and grows with the tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferplane.engine.pace import Pace


def test_nothing_is_expected_before_anything_was_learnt() -> None:
    assert Pace().expect(1000) == 0.0


@given(st.lists(st.tuples(st.floats(0.001, 100), st.integers(1, 4096)), min_size=1), st.integers(1, 4096))
def test_a_step_like_the_last_one_is_never_underestimated(steps: list[tuple[float, int]], tokens: int) -> None:
    pace = Pace()
    for seconds, count in steps:
        pace.learn(seconds, count)
    seconds, count = steps[-1]
    assert pace.expect(count) >= 0.999 * seconds
    assert pace.expect(2 * tokens) == 2 * pace.expect(tokens)


def test_a_hiccup_is_forgotten() -> None:
    pace = Pace()
    pace.learn(100.0, 1)
    for _ in range(100):
        pace.learn(0.01, 1)
    assert pace.expect(1) < 0.02
