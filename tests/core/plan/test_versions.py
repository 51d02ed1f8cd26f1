"""Older plugins and newer requirements, and what the contract will drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import inferplane_api.deprecated
from inferplane.plan.geometry import LayerGroup
from inferplane.plan.select_attention import GroupNeed, Offer, select_attention
from inferplane.plan.select_kernels import KernelNeed, select_ops
from inferplane.plugins.inventory import lowest_api
from inferplane_api import API_VERSION
from inferplane_api.deprecated import Deprecation, deprecated_uses
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import (
    SINCE,
    AttentionRequest,
    AttentionSpec,
    DeviceInfo,
    KernelRequest,
    PlatformSpec,
    SchedulingConstraints,
    Verdict,
    unknown_requirements,
)

Make = Callable[..., Any]


@pytest.mark.parametrize("kind", SINCE)
def test_every_field_of_a_request_says_when_it_came(kind: type[msgspec.Struct]) -> None:
    assert SINCE[kind].keys() == set(kind.__struct_fields__)
    first = [field for field, since in SINCE[kind].items() if since == "0.1.0"]
    later = [field for field in msgspec.structs.fields(kind) if field.name not in first]
    assert all(not field.required for field in later), "a field added later has a default that asks for nothing"


class Later(AttentionRequest, frozen=True, kw_only=True):
    """A request of a contract to come."""

    tree_mask: bool = False


def later(**fields: Any) -> Later:
    defaults: dict[str, Any] = {"platform": "acme", "device": DeviceInfo(), "kind": "full", "num_heads": 4}
    defaults |= {"num_kv_heads": 2, "head_size": 64, "dtype": "float32", "kv_dtype": "float32"}
    return Later(**{**defaults, **fields})


@pytest.fixture(autouse=True)
def _contract_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINCE, Later, {**SINCE[AttentionRequest], "tree_mask": "0.3.0"})


@pytest.mark.parametrize(
    ("built_against", "asked", "refused"),
    [("0.1", True, True), ("0.2.9", True, True), ("0.3", True, False), ("1.0", True, False), ("0.1", False, False)],
)
def test_a_newer_field_is_refused_only_when_it_asks_for_something(
    built_against: str, asked: bool, refused: bool
) -> None:
    reasons = unknown_requirements(later(tree_mask=asked), built_against)
    expected = [f"api.unknown_requirement: tree_mask wants 0.3.0, has {built_against}"] if refused else []
    assert [str(reason) for reason in reasons] == expected


def test_an_older_backend_loses_with_the_reason_and_its_check_is_not_asked(make_attention: Make) -> None:
    old = msgspec.structs.replace(make_attention("old.paged", score=90, check="m:check"), api="0.1.0")
    new = msgspec.structs.replace(make_attention("new.paged", score=30, check="m:check"), api="0.3.0")
    asked = []

    def check(id: str, request: AttentionRequest) -> Verdict:
        asked.append(id)
        return Verdict()

    group = LayerGroup("full", (0,), 4, 2, 64, None, frozenset())
    for tree_mask, chosen in ((False, "old.paged"), (True, "new.paged")):
        need = GroupNeed(group, later(tree_mask=tree_mask), lambda found: None)
        (choice,) = select_attention([need], Offer([old, new], [], (), check), None)
        assert choice.found.spec.id == chosen
    (loser,) = choice.decision.losers
    assert [reason.code for reason in loser.reasons] == ["api.unknown_requirement"]
    assert loser.reasons[0].field == "tree_mask"
    assert asked == ["old.paged", "new.paged", "new.paged"]


def test_an_older_op_provider_loses_too(make_kernel: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINCE, KernelRequest, {**SINCE[KernelRequest], "subject": "0.2.0"})
    ids = tuple(schema.id for schema in SCHEMAS.values())
    old = msgspec.structs.replace(make_kernel("old.ops", "ops", ops=ids, score=90), api="0.1")
    reference = msgspec.structs.replace(make_kernel("reference.ops", "ops", ops=ids, score=5), api="0.2")
    need = KernelNeed("acme", DeviceInfo(), "float32", lambda id, request: Verdict())
    bindings, decisions = select_ops([old, reference], need)
    assert {binding.provider.id for binding in bindings} == {"reference.ops"}
    assert "api.unknown_requirement: subject wants 0.2.0, has 0.1" in str(decisions[0].losers[0].reasons[0])


@pytest.mark.parametrize(
    ("specifier", "lowest"),
    [
        (">=0.1,<0.2", "0.1.0"),
        (">=0.1.4,<0.2", "0.1.4"),
        ("~=0.3.1", "0.3.1"),
        ("==0.3.*", "0.3"),
        (">0.2", "0.2"),
        (">=0.2,>=0.3", "0.3"),
        ("<2", "0.1.0"),
        ("", "0.1.0"),
        (None, "0.1.0"),
    ],
)
def test_the_oldest_contract_that_a_range_admits(specifier: str | None, lowest: str) -> None:
    assert lowest_api(specifier) == lowest


FAKE = (
    Deprecation(
        name="AttentionSpec.batch_invariant", since="0.1.0", replacement="features={'batch-invariant'}", removal="0.3.0"
    ),
    Deprecation(
        name="AttentionSpec.graph_level=never", since="0.1.0", replacement="graph_level='none'", removal="0.3.0"
    ),
    Deprecation(name="AttentionSpec.kinds=cross", since="0.1.0", replacement="encoder", removal="0.3.0"),
    Deprecation(name="SchedulingConstraints.max_chunk", since="0.1.0", replacement="token_buckets", removal="0.3.0"),
)


def test_uses_of_deprecated_fields_and_values(make_attention: Make) -> None:
    def used(spec: msgspec.Struct) -> list[str]:
        return [each.name for each in deprecated_uses(spec, FAKE)]

    spec: AttentionSpec = make_attention("acme.fast", graph_level="always").spec
    assert used(spec) == []
    assert used(msgspec.structs.replace(spec, batch_invariant=True)) == ["AttentionSpec.batch_invariant"]
    assert used(msgspec.structs.replace(spec, graph_level="never")) == ["AttentionSpec.graph_level=never"]
    assert used(msgspec.structs.replace(spec, kinds=frozenset({"full", "cross"}))) == ["AttentionSpec.kinds=cross"]
    platform = PlatformSpec(name="acme", load="m:P", probe="m:p", tier=5)
    assert used(platform) == []
    inside = msgspec.structs.replace(platform, scheduling=SchedulingConstraints(max_chunk=8))
    assert used(inside) == ["SchedulingConstraints.max_chunk"]


def test_nothing_is_deprecated_beyond_its_removal() -> None:
    def number(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    assert all(number(each.removal) > number(API_VERSION) for each in inferplane_api.deprecated.DEPRECATIONS)
