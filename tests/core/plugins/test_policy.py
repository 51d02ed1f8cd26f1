"""Allow-lists and deny-lists over a small inventory."""

from __future__ import annotations

import pytest

from inferplane.errors import InvalidValue
from inferplane.plugins.inventory import PluginEntry
from inferplane.plugins.policy import Policy, policy_from, usable


def entry(kind: str, name: str, distribution: str) -> PluginEntry:
    return PluginEntry(group=f"inferplane.{kind}", name=name, value="m:A", distribution=distribution, version="1")


INVENTORY = [
    entry("platforms", "reference", "inferplane"),
    entry("attention", "reference.paged", "inferplane"),
    entry("platforms", "acme", "acme-npu"),
    entry("attention", "acme.fast", "acme-npu"),
    entry("attention", "flash.paged", "flash-kernels"),
    entry("models", "zebra", "zebra-models"),
]
CORE = {"reference", "reference.paged"}
ALL = CORE | {"acme", "acme.fast", "flash.paged", "zebra"}


def left(allow: tuple[str, ...] | None, deny: tuple[str, ...] = ()) -> set[str]:
    return {item.name for item in usable(INVENTORY, Policy(allow, deny))}


@pytest.mark.parametrize(
    ("allow", "deny", "expected"),
    [
        (None, (), ALL),
        ((), (), CORE),
        (("acme-npu",), (), CORE | {"acme", "acme.fast"}),
        (("Acme_NPU",), (), CORE | {"acme", "acme.fast"}),
        (("acme",), (), CORE | {"acme"}),
        (("acme", "zebra"), (), CORE | {"acme", "zebra"}),
        (None, ("acme-npu",), ALL - {"acme", "acme.fast"}),
        (None, ("acme.fast",), ALL - {"acme.fast"}),
        (("acme-npu",), ("acme.fast",), CORE | {"acme"}),
        # A list for one kind leaves the others alone.
        (("models:zebra",), (), ALL),
        (("attention:flash.paged",), (), ALL - {"acme.fast"}),
        (("attention:flash-kernels", "acme-npu"), (), CORE | {"acme", "acme.fast", "flash.paged"}),
        (None, ("attention:acme-npu",), ALL - {"acme.fast"}),
    ],
)
def test_lists(allow: tuple[str, ...] | None, deny: tuple[str, ...], expected: set[str]) -> None:
    assert left(allow, deny) == expected


@pytest.mark.parametrize(
    ("allow", "deny", "field"), [(("acme-np",), (), "plugins"), (None, ("acme-np",), "disable_plugins")]
)
def test_an_unknown_name_is_an_error_with_a_suggestion(
    allow: tuple[str, ...] | None, deny: tuple[str, ...], field: str
) -> None:
    with pytest.raises(InvalidValue, match="no such plugin is installed") as caught:
        left(allow, deny)
    assert (caught.value.field, caught.value.remedy) == (field, "did you mean 'acme-npu'?")


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(InvalidValue, match="'platform' is not a kind of plugin"):
        left(("platform:acme",))


@pytest.mark.parametrize("name", ["inferplane", "reference.paged"])
def test_core_cannot_be_denied(name: str) -> None:
    with pytest.raises(InvalidValue, match="part of the core"):
        left(None, (name,))


def test_the_variable_holds_where_the_configuration_is_silent() -> None:
    environ = {"INFERPLANE_PLUGINS": "acme-npu, zebra,"}
    assert policy_from(None, (), environ) == Policy(("acme-npu", "zebra"), (), "INFERPLANE_PLUGINS")
    assert policy_from(("acme",), ("zebra",), environ) == Policy(("acme",), ("zebra",))
    assert policy_from(None, (), {}) == Policy(None, ())
    with pytest.raises(InvalidValue) as caught:
        usable(INVENTORY, policy_from(None, (), {"INFERPLANE_PLUGINS": "acme-np"}))
    assert caught.value.field == "INFERPLANE_PLUGINS"
