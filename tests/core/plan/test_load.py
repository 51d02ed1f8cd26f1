"""Loading what a Plan names, and nothing else."""

from __future__ import annotations

import collections
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from inferplane.errors import InferplaneError
from inferplane.plan.load import construct, load_component
from inferplane.plan.types import Component
from inferplane_api.errors import Unsupported

MSGSPEC = version("msgspec")


def component(load: str, *, distribution: str = "msgspec", at: str = MSGSPEC) -> Component:
    return Component(id="acme.x", load=load, distribution=distribution, version=at)


@pytest.mark.parametrize(
    ("load", "value"),
    [("collections:OrderedDict", collections.OrderedDict), ("collections:OrderedDict.fromkeys", dict.fromkeys)],
)
def test_load(load: str, value: object) -> None:
    loaded = load_component(component(load))
    assert loaded.__name__ == value.__name__  # type: ignore[attr-defined]


def test_another_version_than_planned_names_both() -> None:
    with pytest.raises(InferplaneError) as caught:
        load_component(component("collections:OrderedDict", at="0.0.1"))
    assert caught.value.code == "plan.version"
    assert "planned with msgspec 0.0.1" in caught.value.message
    assert MSGSPEC in caught.value.message
    assert caught.value.remedy


def test_a_distribution_that_is_gone() -> None:
    with pytest.raises(InferplaneError, match=r"planned with acme-gone 1, and this process finds no version"):
        load_component(component("collections:OrderedDict", distribution="acme-gone", at="1"))


@pytest.mark.parametrize("load", ["no_such_module:X", "collections:NoSuch"])
def test_what_cannot_be_imported_names_distribution_version_and_cause(load: str) -> None:
    with pytest.raises(InferplaneError) as caught:
        load_component(component(load))
    assert caught.value.code == "plan.load"
    assert f"of msgspec {MSGSPEC} cannot be loaded from {load!r}" in caught.value.message
    assert f"msgspec=={MSGSPEC}" in caught.value.remedy
    assert caught.value.__cause__ is not None


def test_whatever_a_plugin_raises_at_import_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_raising.py").write_text("raise RuntimeError('no firmware')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InferplaneError, match=rf"of msgspec {MSGSPEC} cannot be loaded.*RuntimeError: no firmware"):
        load_component(component("acme_raising:X"))


class _Picky:
    """A plugin's class that takes one argument only."""

    def __init__(self, argument: object) -> None:
        if argument == "refuse":
            raise Unsupported("no such mode", code="acme.mode", remedy="choose another")
        self.argument = argument


def test_what_a_constructor_raises_names_the_plugin(caplog: pytest.LogCaptureFixture) -> None:
    part = Component(id="acme.paged", load="acme:Paged", distribution="acme-npu", version="1.2")

    def load(component: Component) -> Any:
        assert component is part
        return _Picky

    assert construct(load, part, 7).argument == 7
    with pytest.raises(InferplaneError, match=r"acme\.paged of acme-npu 1\.2: no such mode") as caught:
        construct(load, part, "refuse")
    assert (caught.value.code, caught.value.remedy) == ("acme.mode", "choose another")
    assert not caplog.records
    with pytest.raises(InferplaneError, match=r"acme\.paged of acme-npu 1\.2 cannot be made: TypeError") as caught:
        construct(load, part, 1, 2)
    assert caught.value.code == "plugin.construct"
    assert "acme-npu" in caught.value.remedy
    assert caplog.records[-1].exc_info is not None
