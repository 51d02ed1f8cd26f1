"""Stop strings against a search of the whole text, for every way of cutting it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.text.stop_strings import StopStrings

ALPHABET = "ab"


def naive(text: str, stops: list[str]) -> tuple[int, str] | None:
    for end in range(1, len(text) + 1):
        if found := [s for s in stops if text[:end].endswith(s)]:
            return end, max(found, key=len)
    return None


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(ALPHABET, max_size=30),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
def test_any_cut_gives_the_same(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    matcher = StopStrings(stops, include=include)
    edges = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    given_out, stop, longest = "", None, max(map(len, stops))
    for start, end in itertools.pairwise(edges):
        piece, stop = matcher.feed(text[start:end], armed=True)
        given_out += piece
        if stop is not None:
            break
        held = end - len(given_out)
        assert held == 0 if include else held <= longest - 1
    expected = naive(text, stops)
    if expected is None:
        assert stop is None
        assert given_out + matcher.flush() == text
    else:
        end, expected_stop = expected
        assert stop == expected_stop
        assert given_out == (text[:end] if include else text[: end - len(expected_stop)])


def test_a_very_long_stop_string_costs_no_more_than_the_text() -> None:
    matcher = StopStrings(["a" * 100_000 + "b"], include=False)
    text = "".join(matcher.feed("a" * 10, armed=True)[0] for _ in range(11_000))
    assert text == "a" * 10_000
    assert matcher.feed("b", armed=True) == ("", "a" * 100_000 + "b")
