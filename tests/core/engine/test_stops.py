"""How a request ends, checked on prescribed tokens."""

from __future__ import annotations

import pytest

from inferplane.engine.outcome import accept
from inferplane.engine.request import RequestState
from inferplane_api.sampling import RepetitionDetection

LOOP = RepetitionDetection(max_pattern_size=2, min_count=3)


def feed(lab, tokens, *, max_model_len=64, prompt=(1, 2), **fields):
    """(tokens used, finish) of a request whose model emits `tokens`, one a step."""
    state = RequestState(lab.request("r", list(prompt), **fields), (0, 0), max_model_len, 0.0)
    for number, token in enumerate(tokens, 1):
        _, _, finish = accept(state, [token], None)
        if finish is not None:
            return number, *finish
    return len(tokens), None, None


@pytest.mark.parametrize(
    ("tokens", "fields", "want"),
    [
        ([5, 0, 6], {}, (2, "stop", None)),
        ([5, 0, 6], {"ignore_eos": True}, (3, None, None)),
        ([5, 7, 6], {"stop_token_ids": (7,)}, (2, "stop", 7)),
        ([5, 7, 6], {"stop_token_ids": (7,), "ignore_eos": True}, (2, "stop", 7)),
        ([5, 0, 6], {"stop_token_ids": (0,)}, (2, "stop", None)),
        ([5, 0, 6], {"stop_token_ids": (0,), "ignore_eos": True}, (2, "stop", 0)),
        ([0, 7, 0], {"stop_token_ids": (7,), "min_tokens": 3}, (3, "stop", None)),
        ([0, 7, 5], {"stop_token_ids": (7,), "min_tokens": 2}, (2, "stop", 7)),
        ([5, 6, 7], {"max_tokens": 3}, (3, "length", None)),
        ([5, 6, 0], {"max_tokens": 3}, (3, "stop", None)),
        ([5, 6, 7, 8], {"max_tokens": 9, "max_model_len": 5}, (3, "length", None)),
        ([5, 9], {"eos_token_ids": (8, 9)}, (2, "stop", None)),
        ([5, 6, 5, 6, 5, 6], {"repetition_detection": LOOP}, (6, "stop", "repetition_detected")),
        ([6, 6, 6, 6, 6, 6], {"repetition_detection": LOOP}, (3, "stop", "repetition_detected")),
        ([6, 6, 6, 6, 6, 6], {"repetition_detection": LOOP, "min_tokens": 5}, (5, "stop", "repetition_detected")),
        ([1, 2, 1, 2, 3, 4], {"repetition_detection": LOOP}, (6, None, None)),
        ([6, 6, 0], {"repetition_detection": LOOP}, (3, "stop", None)),
    ],
)
def test_the_end_of_a_request(lab, tokens, fields, want):
    assert feed(lab, tokens, **fields) == want


def test_tokens_behind_the_end_are_dropped(lab):
    state = RequestState(lab.request("r", [1], max_tokens=9), (0, 0), 64, 0.0)
    tokens, _, finish = accept(state, [5, 0, 6], None)
    assert tokens == [5, 0]
    assert finish is not None
    assert state.tokens == [1, 5, 0]
