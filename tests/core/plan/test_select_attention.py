"""Attention per group: what wins, what an explicit choice refuses, and what the messages name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.geometry import LayerGroup
from inferplane.plan.select_attention import AttentionChoice, GroupNeed, Offer, find_backend, select_attention
from inferplane.plugins.records import NOT_LISTED, LeftOut, Refused
from inferplane_api.spec import (
    AttentionRequest,
    DeviceInfo,
    HeadSizes,
    ProbeState,
    Reason,
    Verdict,
)

Make = Callable[..., Any]


def need(
    kind: Any = "full", *, count: int = 3, head_size: int = 64, features: frozenset[str] = frozenset()
) -> GroupNeed:
    window = 512 if kind == "sliding" else None
    group = LayerGroup(kind, tuple(range(count)), 4, 1, head_size, window, features)
    request = AttentionRequest(
        platform="acme",
        device=DeviceInfo(),
        kind=kind,
        num_heads=4,
        num_kv_heads=1,
        head_size=head_size,
        dtype="bfloat16",
        kv_dtype="bfloat16",
        window=window,
        features=features,
    )
    return GroupNeed(group, request, lambda found: None)


def yes(id: str, request: AttentionRequest) -> Verdict:
    return Verdict()


def offer(
    *backends: Any, preference: tuple[str, ...] = (), check: Any = yes, refused: tuple[Refused, ...] = ()
) -> Offer:
    return Offer(backends, refused, preference, check)


def ids(choices: list[AttentionChoice]) -> list[str]:
    return [choice.found.spec.id for choice in choices]


def test_score_then_preference_then_id(make_attention: Make) -> None:
    backends = [make_attention("b.x", score=50), make_attention("a.x", score=50), make_attention("c.x", score=20)]
    assert ids(select_attention([need()], offer(*backends), None)) == ["a.x"]
    assert ids(select_attention([need()], offer(*backends, preference=("b.x",)), None)) == ["b.x"]
    assert ids(select_attention([need()], offer(*backends, preference=("c.x",)), None)) == ["a.x"]


def test_the_record_holds_every_loser_with_its_reasons(make_attention: Make) -> None:
    backends = [
        make_attention("best.x", score=60),
        make_attention("tie.x", score=60),
        make_attention("slow.x", score=10),
        make_attention("small.x", score=90, head_sizes=HeadSizes(exact=(32, 128))),
        make_attention("other.x", score=90, platforms=frozenset({"other"}), requires=frozenset({"tensor_units"})),
    ]
    (choice,) = select_attention([need()], offer(*backends), None)
    assert (choice.decision.subject, choice.decision.chosen, choice.decision.score) == (
        "attention full x3",
        "best.x",
        60,
    )
    codes = {loser.id: [reason.code for reason in loser.reasons] for loser in choice.decision.losers}
    assert codes == {
        "tie.x": ["selection.preference"],
        "slow.x": ["selection.score"],
        "small.x": ["attention.head_size"],
        "other.x": ["attention.platform", "attention.device_feature"],
    }


def test_groups_are_chosen_apart(make_attention: Make) -> None:
    backends = [
        make_attention("fast.full", score=80, kinds=frozenset({"full"})),
        make_attention("plain.any", score=10),
    ]
    choices = select_attention([need("sliding", count=15), need("full")], offer(*backends), None)
    assert ids(choices) == ["plain.any", "fast.full"]
    assert [choice.decision.subject for choice in choices] == ["attention sliding(512) x15", "attention full x3"]


def test_a_check_is_asked_only_where_data_agrees(make_attention: Make) -> None:
    asked: list[str] = []

    def check(id: str, request: AttentionRequest) -> Verdict:
        asked.append(id)
        return Verdict((Reason(code="picky.no", hint="not today"),)) if id == "picky.x" else Verdict()

    backends = [
        make_attention("picky.x", score=90),
        make_attention("other.x", score=95, platforms=frozenset({"other"})),
        make_attention("plain.x", score=10),
    ]
    (choice,) = select_attention([need()], offer(*backends, check=check), None)
    assert choice.found.spec.id == "plain.x"
    assert asked == ["picky.x", "plain.x"]


@pytest.mark.parametrize("name", ["flash.paged", "FLASH.Paged", "paged", "FLASH_ATTN", "flash_attn"])
def test_names_that_a_user_may_give(make_attention: Make, name: str) -> None:
    backends = [make_attention("flash.paged", aliases=("FLASH_ATTN",)), make_attention("reference.dense", score=90)]
    (choice,) = select_attention([need()], offer(*backends), name)
    assert choice.found.spec.id == "flash.paged"
    assert choice.decision.source == "user"
    assert [reason.code for loser in choice.decision.losers for reason in loser.reasons] == ["selection.user"]


def test_a_short_name_of_two_is_ambiguous(make_attention: Make) -> None:
    backends = offer(make_attention("a.paged"), make_attention("b.paged"))
    with pytest.raises(InvalidValue, match=r"more than one of a\.paged, b\.paged"):
        find_backend("paged", backends)


def test_an_unknown_name_is_an_error_with_a_suggestion(make_attention: Make) -> None:
    with pytest.raises(InvalidValue, match=r"no such attention backend; installed: flash\.paged") as caught:
        find_backend("flash.page", offer(make_attention("flash.paged")))
    assert caught.value.field == "attention_backend"
    assert caught.value.remedy == "did you mean 'flash.paged'?"


def test_a_broken_backend_is_named_with_its_owner(make_attention: Make) -> None:
    refused = Refused(
        group="inferplane.attention",
        name="flash.paged",
        distribution="flash-kernels",
        version="9.1",
        state=ProbeState.BROKEN,
        reason=Reason(code="plugin.import", hint="ImportError: libflash.so"),
    )
    with pytest.raises(InvalidValue, match=r"flash-kernels 9\.1 is BROKEN.*libflash\.so") as caught:
        find_backend("flash.paged", offer(refused=(refused,)))
    assert "flash-kernels" in caught.value.remedy


def test_an_asked_backend_that_cannot_run_refuses_with_reasons_and_those_that_can(make_attention: Make) -> None:
    backends = [
        make_attention("flash.paged", head_sizes=HeadSizes(multiple_of=8, max=128)),
        make_attention("slow.one"),
        make_attention("slow.two"),
        make_attention("small.x", head_sizes=HeadSizes(exact=(64,))),
    ]
    with pytest.raises(InvalidValue) as caught:
        select_attention([need(head_size=256)], offer(*backends), "flash.paged")
    assert caught.value.value == "flash.paged"
    assert "flash-dist 1.2 cannot run full x3: attention.head_size" in caught.value.problem
    assert "wants 256, has multiples of 8 to 128" in caught.value.problem
    assert "slow.one, slow.two" in caught.value.remedy
    assert "small.x" not in caught.value.remedy


def test_on_a_hybrid_model_the_error_names_the_group(make_attention: Make) -> None:
    backends = offer(make_attention("fast.full", kinds=frozenset({"full"})), make_attention("plain.any", score=10))
    needs = [need("sliding", count=15), need("full")]
    with pytest.raises(InvalidValue, match=r"cannot run sliding\(512\) x15: attention\.kind") as caught:
        select_attention(needs, backends, "fast.full")
    assert "plain.any" in caught.value.remedy
    assert "KIND=NAME" in caught.value.remedy


def test_a_choice_for_one_kind_leaves_the_others_automatic(make_attention: Make) -> None:
    backends = offer(
        make_attention("fast.full", kinds=frozenset({"full"})),
        make_attention("plain.any", score=90),
        make_attention("other.any", score=10),
    )
    needs = [need("sliding", count=15), need("full")]
    choices = select_attention(needs, backends, "full=fast.full")
    assert ids(choices) == ["plain.any", "fast.full"]
    assert [choice.decision.source for choice in choices] == ["automatic", "user"]
    assert ids(select_attention(needs, backends, "full=FAST.full, sliding=other.any")) == ["other.any", "fast.full"]
    with pytest.raises(InvalidValue, match="no layers of kind 'latent'"):
        select_attention(needs, backends, "latent=plain.any")


def test_no_backend_at_all_names_every_reason(make_attention: Make) -> None:
    backends = [make_attention("a.x", dtypes=frozenset({"float32"})), make_attention("b.x", features=frozenset())]
    with pytest.raises(InferplaneError) as caught:
        select_attention([need(features=frozenset({"sinks"}))], offer(*backends), None)
    assert caught.value.code == "attention.none"
    assert "a.x: attention.dtype: dtype wants bfloat16, has float32" in caught.value.message
    assert "b.x: attention.features: features wants sinks" in caught.value.message
    assert caught.value.remedy


def test_page_sizes_count(make_attention: Make) -> None:
    reason = Reason(code="attention.page_size", field="page_size", want="16", have="64")
    picky = need()._replace(takes_pages=lambda found: reason if found.spec.id == "big.x" else None)
    (choice,) = select_attention([picky], offer(make_attention("big.x", score=90), make_attention("any.x")), None)
    assert choice.found.spec.id == "any.x"
    assert choice.decision.losers[0].reasons == (reason,)


def test_what_is_left_out_is_told(make_attention: Callable[..., Any]) -> None:
    left_out = LeftOut(
        distribution="flash-dist",
        version="2",
        names=("flash.paged", "flash"),
        kinds=("attention", "platforms"),
        reason=Reason(code=NOT_LISTED, hint="not named by plugins"),
    )
    have = offer(make_attention("other.plain"))._replace(left_out=(left_out,))
    for name in ("flash.paged", "PAGED"):
        with pytest.raises(InvalidValue, match=r"is installed \(flash-dist 2\) and left out: not named") as caught:
            find_backend(name, have)
        assert "add flash-dist to --plugins" in caught.value.remedy
    with pytest.raises(InvalidValue) as caught:
        find_backend("flash.pagde", have)
    assert "did you mean 'flash.paged'?" in caught.value.remedy
    assert "left out" in caught.value.remedy
