"""Loading what a Plan names, and nothing else."""

from __future__ import annotations

import collections
from importlib.metadata import version
from pathlib import Path

import pytest

from inferplane.errors import InferplaneError
from inferplane.plan.load import load_component
from inferplane.plan.types import Component

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
