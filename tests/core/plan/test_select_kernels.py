"""Ops and linear kernels: the best that fits, the reference where nothing better does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferplane.errors import InferplaneError
from inferplane.plan.select_kernels import KernelNeed, select_linear, select_ops
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import DeviceInfo, KernelRequest, Reason, Verdict

Make = Callable[..., Any]

ALL_OPS = tuple(schema.id for schema in SCHEMAS.values())


IN_PLACE = frozenset({"in_place_kv_write"})


def need(dtype: str = "bfloat16", features: frozenset[str] = IN_PLACE, check: Any = None) -> KernelNeed:
    return KernelNeed("acme", DeviceInfo(features=features), dtype, check or (lambda id, request: Verdict()))


@pytest.fixture
def reference_ops(make_kernel: Make) -> Any:
    return make_kernel("reference.ops", "ops", ops=ALL_OPS, score=10)


@pytest.fixture
def reference_linear(make_kernel: Make) -> Any:
    return make_kernel("reference.linear", "linear", schemes=("*",), score=10)


def test_every_op_has_a_provider_and_a_subset_is_enough(make_kernel: Make, reference_ops: Any) -> None:
    acme = make_kernel("acme.ops", "ops", ops=("rms_norm@1", "rope@1", "unknown_op@7"), score=60)
    bindings, decisions = select_ops([reference_ops, acme], need())
    bound = {binding.op: binding.provider.id for binding in bindings}
    assert bound == {op: "acme.ops" if op in ("rms_norm@1", "rope@1") else "reference.ops" for op in ALL_OPS}
    by_subject = {decision.subject: decision for decision in decisions}
    assert [loser.id for loser in by_subject["op rope@1"].losers] == ["reference.ops"]
    assert by_subject["op embedding@1"].losers == ()
    provider = next(binding.provider for binding in bindings if binding.op == "rope@1")
    assert (provider.load, provider.distribution, provider.version) == ("acme.ops:K", "acme-dist", "1.2")


def test_an_op_that_the_device_cannot_have_is_not_bound(reference_ops: Any) -> None:
    bindings, decisions = select_ops([reference_ops], need(features=frozenset()))
    assert {binding.op for binding in bindings} == set(ALL_OPS) - {"kv_write@1"}
    decision = next(decision for decision in decisions if decision.subject == "op kv_write@1")
    assert decision.chosen == "none"
    assert "in_place_kv_write" in decision.reason


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"platforms": frozenset({"other"})}, "kernel.platform"),
        ({"dtypes": frozenset({"float32"})}, "kernel.dtype"),
        ({"requires": frozenset({"tensor_units"})}, "kernel.device_feature"),
    ],
)
def test_what_does_not_fit_is_a_loser_with_a_reason(
    make_kernel: Make, reference_ops: Any, fields: dict[str, Any], code: str
) -> None:
    acme = make_kernel("acme.ops", "ops", ops=("rope@1",), score=60, **fields)
    bindings, decisions = select_ops([acme, reference_ops], need())
    assert {binding.provider.id for binding in bindings} == {"reference.ops"}
    decision = next(decision for decision in decisions if decision.subject == "op rope@1")
    assert [reason.code for loser in decision.losers for reason in loser.reasons] == [code]


def test_another_version_of_an_op_is_another_op(make_kernel: Make, reference_ops: Any) -> None:
    acme = make_kernel("acme.ops", "ops", ops=("rope@2",), score=60)
    bindings, _ = select_ops([acme, reference_ops], need())
    assert {binding.provider.id for binding in bindings} == {"reference.ops"}


def test_a_check_is_asked_about_each_op(make_kernel: Make, reference_ops: Any) -> None:
    asked: list[tuple[str, str]] = []

    def check(id: str, request: KernelRequest) -> Verdict:
        asked.append((id, request.subject))
        return Verdict((Reason(code="acme.no"),)) if request.subject == "rope@1" else Verdict()

    acme = make_kernel("acme.ops", "ops", ops=("rope@1", "rms_norm@1"), score=60, check="acme:check")
    bindings, _ = select_ops([reference_ops, acme], need(check=check))
    bound = {binding.op: binding.provider.id for binding in bindings}
    assert (bound["rope@1"], bound["rms_norm@1"]) == ("reference.ops", "acme.ops")
    assert sorted(asked) == [("acme.ops", "rms_norm@1"), ("acme.ops", "rope@1")], "one without a check is not asked"


def test_an_op_without_a_provider_is_an_error(make_kernel: Make) -> None:
    with pytest.raises(InferplaneError, match="nothing runs op embedding@1 in bfloat16: no provider") as caught:
        select_ops([], need())
    assert caught.value.remedy


def test_linear_per_scheme(make_kernel: Make, reference_linear: Any) -> None:
    fast = make_kernel("acme.linear", "linear", schemes=("dense", "ggml.q4_0"), score=70)
    packed = make_kernel("beta.linear", "linear", schemes=("ggml.q4_0",), score=80, dtypes=frozenset({"float32"}))
    chosen, decisions = select_linear([reference_linear, fast, packed], need())
    assert [(scheme, component.id) for scheme, component in chosen] == [
        ("dense", "acme.linear"),
        ("ggml.q4_0", "acme.linear"),
        ("*", "reference.linear"),
    ]
    decision = next(decision for decision in decisions if decision.subject == "linear ggml.q4_0")
    assert {loser.id: loser.reasons[0].code for loser in decision.losers} == {
        "reference.linear": "selection.score",
        "beta.linear": "kernel.dtype",
    }
    chosen, _ = select_linear([reference_linear, fast, packed], need("float32"))
    assert dict((scheme, component.id) for scheme, component in chosen)["ggml.q4_0"] == "beta.linear"


def test_ties_go_to_the_id(make_kernel: Make, reference_linear: Any) -> None:
    kernels = [make_kernel(f"{name}.linear", "linear", schemes=("dense",), score=50) for name in ("b", "a")]
    chosen, _ = select_linear([reference_linear, *kernels], need())
    assert chosen[0][1].id == "a.linear"
