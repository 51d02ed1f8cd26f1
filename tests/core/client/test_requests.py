"""Requests are built, or refused by field name, at the edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplane.client.requests import Limits, build_requests, derive_seed
from inferplane.errors import ContextTooLong, InvalidValue
from inferplane_api.sampling import SamplingParams

LIMITS = Limits(max_model_len=32, vocab_size=100, eos_token_ids=(2,), max_logprobs=5)


def build(prompt: list[int], limits: Limits = LIMITS, priority: int = 0, **fields: object) -> list:
    return build_requests(
        prompt,
        SamplingParams(**fields),
        limits,
        client_id="c",
        request_id="r",
        priority=priority,
    )


def test_max_tokens_none_takes_the_rest_of_the_context() -> None:
    (request,) = build([1] * 10, max_tokens=None)
    assert request.params.max_tokens == 22


@pytest.mark.parametrize(("length", "max_tokens"), [(32, None), (33, None), (30, 3), (40, 1), (33, 0)])
def test_too_long_names_both_numbers(length: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextTooLong) as caught:
        build([1] * length, max_tokens=max_tokens, prompt_logprobs=0)
    assert str(length) in str(caught.value)
    assert "32" in str(caught.value)


def test_a_prompt_that_exactly_fits_is_taken() -> None:
    assert build([1] * 31, max_tokens=1)[0].params.max_tokens == 1
    assert build([1] * 32, max_tokens=0, prompt_logprobs=0)[0].params.max_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "fields", "field"),
    [
        ([], {}, "prompt"),
        ([100], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1], {"logit_bias": {100: 1.0}}, "logit_bias"),
        ([1], {"allowed_token_ids": (5, 100)}, "allowed_token_ids"),
        ([1], {"allowed_token_ids": (2,), "min_tokens": 1}, "allowed_token_ids"),
        ([1], {"allowed_token_ids": (2, 7), "stop_token_ids": (7,), "min_tokens": 1}, "allowed_token_ids"),
        ([1], {"stop_token_ids": (100,)}, "stop_token_ids"),
        ([1], {"logprobs": 6}, "logprobs"),
        ([1], {"logprobs": -1}, "logprobs"),
        ([1], {"prompt_logprobs": 6}, "prompt_logprobs"),
        ([1], {"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_bad_value_is_named(prompt: list[int], fields: dict, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        build(prompt, **fields)
    assert caught.value.field == field


def test_allowed_tokens_may_end_the_answer_where_nothing_forbids_it() -> None:
    for fields in ({"min_tokens": 0}, {"min_tokens": 1, "ignore_eos": True}):
        assert build([1], allowed_token_ids=(2,), **fields)


def test_priority_needs_the_policy() -> None:
    with pytest.raises(InvalidValue, match="priority"):
        build([1], priority=1)
    assert build([1], Limits(max_model_len=32, vocab_size=100, priorities=True), priority=-3)[0].priority == -3


def test_ignore_eos_sends_no_eos() -> None:
    assert build([1])[0].eos_token_ids == (2,)
    assert build([1], ignore_eos=True)[0].eos_token_ids == ()


@given(seed=st.integers(0, 2**64 - 1), n=st.integers(1, 40))
def test_children_have_distinct_seeds_and_ids_and_repeat(seed: int, n: int) -> None:
    first = build([1], n=n, seed=seed)
    again = build([1], n=n, seed=seed)
    assert [r.seed for r in first] == [r.seed for r in again] == [derive_seed(seed, i) for i in range(n)]
    assert len({r.seed for r in first}) == len({r.request_id for r in first}) == n
    assert first[0].seed == seed
    assert all(0 <= r.seed < 2**64 and r.params.n == 1 for r in first)


def test_without_a_seed_two_requests_differ() -> None:
    assert build([1])[0].seed != build([1])[0].seed
