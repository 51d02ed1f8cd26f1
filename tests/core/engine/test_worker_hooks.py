"""Worker hooks in the engine's process: every plugin by itself, and one that fails no more."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from inferplane.engine.worker_hooks import WorkerHooks
from inferplane.errors import InferplaneError
from inferplane.plan.types import Component, Plan
from inferplane_api.hooks import hookimpl


class Good:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    @hookimpl
    def inferplane_worker_start(self, role: str, rank: int) -> None:
        self.calls.append(("start", (role, rank)))

    @hookimpl
    def inferplane_worker_stop(self) -> None:
        self.calls.append(("stop", ()))


class Bad(Good):
    @hookimpl
    def inferplane_worker_start(self, role: str, rank: int) -> None:
        raise RuntimeError("no licence")


class Misfit:
    @hookimpl
    def inferplane_worker_start(self, nothing: int) -> None:
        pass


def hooks_for(**plugins: object) -> WorkerHooks:
    components = tuple(Component(id="hooks", load=name, distribution=name, version="1.2") for name in plugins)
    plan: Any = type("Plan", (), {"hooks": components})()

    def load(component: Component) -> Any:
        plugin = plugins[component.load]
        if isinstance(plugin, Exception):
            raise plugin
        return plugin

    return WorkerHooks(plan, load)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    logger = logging.getLogger("inferplane.engine.worker_hooks")
    monkeypatch.setattr(logger, "warning", lambda text, *args: lines.append(text % args))
    return lines


def test_a_failing_plugin_is_named_and_the_others_are_called(warnings: list[str]) -> None:
    first, bad, last = Good(), Bad(), Good()
    hooks = hooks_for(first=first, bad=bad, misfit=Misfit(), last=last)
    hooks.start()
    hooks.stop()
    for good in (first, last):
        assert good.calls == [("start", ("engine", 0)), ("stop", ())]
    assert bad.calls == [], "a plugin that failed is not called again"
    assert any("of bad 1.2: inferplane_worker_start failed" in text and "no licence" in text for text in warnings)
    assert any("of misfit 1.2: registration failed" in text and "nothing" in text for text in warnings)
    assert len(warnings) == 2


def test_a_plugin_that_cannot_be_imported_is_named_and_another_version_stops_the_start(warnings: list[str]) -> None:
    good = Good()
    hooks = hooks_for(gone=InferplaneError("no module", code="plan.load"), good=good)
    hooks.start()
    assert good.calls == [("start", ("engine", 0))]
    (warning,) = warnings
    assert "of gone 1.2: import failed" in warning
    with pytest.raises(InferplaneError, match="planned with"):
        hooks_for(other=InferplaneError("planned with another", code="plan.version")).start()


def test_an_end_is_told_once(warnings: list[str]) -> None:
    good = Good()
    hooks = hooks_for(good=good)
    hooks.start()
    hooks.stop()
    hooks.stop()
    assert [name for name, _ in good.calls] == ["start", "stop"]


def test_without_plugins_nothing_happens(warnings: list[str]) -> None:
    hooks = hooks_for()
    hooks.start()
    hooks.stop()
    assert warnings == []


def test_a_plan_names_its_hooks() -> None:
    assert "hooks" in Plan.__struct_fields__
