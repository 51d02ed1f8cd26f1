"""Plugins that change the core: what is named, who is blamed, and what locked mode makes of it."""

from __future__ import annotations

import importlib
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import inferplane.errors
import inferplane.host.facts
import inferplane.plan.geometry
import inferplane_api.ops
from inferplane.config import PlatformConfig
from inferplane.errors import InferplaneError
from inferplane.plan.hooks import tell_selection
from inferplane.plan.load import Loader
from inferplane.plan.types import Component
from inferplane.plugins.discovery import discover
from inferplane.plugins.tamper import Watch
from inferplane_api.spec import HostInfo, PageSizes

NAME = "inferplane.host.facts.collect_host"


@pytest.fixture
def patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Component]]:
    """patch(module, source) is a component of distribution <module> 1.0 whose import runs the source."""
    saved = {
        (inferplane.host.facts, "collect_host"): inferplane.host.facts.collect_host,
        (PageSizes, "allows"): PageSizes.allows,
    }
    schemas = dict(inferplane_api.ops.SCHEMAS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(module: str, source: str) -> Component:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        importlib.invalidate_caches()
        return Component(id=f"{module}.x", load=f"{module}:VALUE", distribution=module, version="1.0")

    yield make
    for (owner, name), value in saved.items():
        setattr(owner, name, value)
    inferplane_api.ops.SCHEMAS.clear()
    inferplane_api.ops.SCHEMAS.update(schemas)
    for name in ("added_by_plugin",):
        if hasattr(inferplane.plan.geometry, name):
            delattr(inferplane.plan.geometry, name)
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[module]


def loader(*components: Component, mode: str = "auto") -> Loader:
    plan: Any = type("Plan", (), {})()
    plan.plugins_mode, plan.platform, plan.checkpoint_format = mode, components[0], components[0]
    plan.architecture, plan.attention, plan.ops, plan.linear, plan.hooks = None, components, (), (), ()
    plan.logits_processors = ()
    return Loader(plan)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    lines: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("inferplane.plan.load"), "warning", lambda text, *args: lines.append(text % args)
    )
    return lambda: lines


SOURCES = {
    "a function": ("import inferplane.host.facts as f\nf.collect_host = lambda: None\nVALUE = 1", NAME),
    "a method of the contract": (
        "from inferplane_api.spec import PageSizes\nPageSizes.allows = lambda self, n: True\nVALUE = 1",
        "inferplane_api.spec.PageSizes.allows",
    ),
    "an entry of a table": (
        "from inferplane_api.ops import SCHEMAS\nSCHEMAS['rms_norm'] = 3\nVALUE = 1",
        "inferplane_api.ops.SCHEMAS.rms_norm",
    ),
    "a name that was not there": (
        "import inferplane.plan.geometry as g\ndef f(): pass\ng.added_by_plugin = f\nVALUE = 1",
        "inferplane.plan.geometry.added_by_plugin",
    ),
    "a wrapper that hides its origin": (
        """
        import functools, inferplane.host.facts as f
        original = f.collect_host
        @functools.wraps(original)
        def wrapped(): return original()
        f.collect_host = wrapped
        VALUE = 1
        """,
        NAME,
    ),
}


@pytest.mark.parametrize("what", SOURCES)
def test_a_change_at_import_is_attributed(what: str, patch: Callable[..., Component], warnings: Any) -> None:
    source, name = SOURCES[what]
    quiet, loud = patch("acme_quiet", "VALUE = 2"), patch("acme_loud", source)
    load = loader(quiet, loud)
    assert load(quiet) == 2
    assert warnings() == []
    assert load(loud) == 1
    assert warnings() == [
        f"plugin acme_loud 1.0 changes the core, which no plugin may: it rebinds {name}",
    ]
    load.check()
    load(quiet)
    assert len(warnings()) == 1, "told once"


def test_a_change_by_a_constructor_is_attributed_by_whose_code_it_is(
    patch: Callable[..., Component], warnings: Any
) -> None:
    source = """
        class VALUE:
            def __init__(self):
                import inferplane.host.facts as f
                f.collect_host = lambda: None
    """
    loud, last = patch("acme_loud", source), patch("acme_last", "VALUE = 1")
    load = loader(loud, last)
    constructor = load(loud)
    load(last)
    constructor()
    load.check()
    (warning,) = warnings()
    assert "plugin acme_loud 1.0" in warning
    assert NAME in warning


def test_it_is_an_error_when_locked(patch: Callable[..., Component]) -> None:
    loud = patch("acme_loud", SOURCES["a function"][0])
    with pytest.raises(InferplaneError, match=rf"acme_loud 1\.0 changes the core.*{NAME}") as caught:
        loader(loud, mode="locked")(loud)
    assert caught.value.code == "plugin.tampering"
    assert "--disable-plugins acme_loud" in caught.value.remedy


def test_importing_more_of_the_core_is_no_change() -> None:
    watch = Watch()
    for module in ("inferplane.text.chat_template", "inferplane.plan.resolve", "inferplane.cli.doctor"):
        importlib.import_module(module)
    assert watch.changes({"acme"}) == []


DESCRIPTOR = """
import inferplane_api.spec as spec
from inferplane_api.spec import *
PLATFORM = PlatformSpec(name="acme", load="acme_loud:P", probe="acme_loud:probe", tier=5)
def probe(host):
    IN_PROBE
    return ProbeResult(state=ProbeState.PRESENT, devices=(DeviceInfo(name="chip"),))
"""
PATCH = "spec.PageSizes.allows = lambda self, n: True"


@pytest.mark.parametrize("where", ["descriptor", "probe"])
def test_a_descriptor_that_changes_its_child(where: str, patch: Callable[..., Component], tmp_path: Path) -> None:
    in_probe = PATCH if where == "probe" else "pass"
    source = DESCRIPTOR.replace("IN_PROBE", in_probe) + (PATCH if where == "descriptor" else "")
    patch("acme_loud", source)
    info = tmp_path / "acme_loud-1.0.dist-info"
    (info / "entry_points.txt").write_text("[inferplane.platforms]\nacme = acme_loud:PLATFORM\n")
    host = HostInfo(os="linux", machine="x86_64", torch_version="2.13.0")
    config = PlatformConfig(plugins=("acme-loud",))
    with discover(host, config, environ={}) as discovery:
        (problem,) = discovery.problems
    assert (problem.level, problem.code) == ("warning", "plugin.tampering")
    assert "plugin acme-loud 1.0" in problem.message
    assert "inferplane_api.spec.PageSizes.allows" in problem.message


HOOKS = """
import inferplane_api.spec as spec
from inferplane_api.hooks import hookimpl
class Plugin:
    @hookimpl
    def inferplane_selection(self, record):
        spec.PageSizes.allows = lambda self, n: True
PLUGIN = Plugin()
"""


class Told(msgspec.Struct):
    """What `tell_selection` reads of a Plan besides the record."""

    hooks: tuple[Component, ...] = ()
    warnings: tuple[str, ...] = ("earlier",)


@pytest.mark.parametrize("mode", ["auto", "locked"])
def test_a_change_while_the_selection_is_told_is_seen(
    mode: str, patch: Callable[..., Component], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook is the last code of a plugin that runs before the start: nobody looks again afterwards."""
    patch("acme_loud", HOOKS)
    info = tmp_path / "acme_loud-1.0.dist-info"
    (info / "entry_points.txt").write_text("[inferplane.plugins]\nacme = acme_loud:PLUGIN\n")
    monkeypatch.setattr("inferplane.plan.hooks.selection_record", lambda plan: {})
    host = HostInfo(os="linux", machine="x86_64", torch_version="2.13.0")
    plan: Any = Told()
    with discover(host, PlatformConfig(plugins=("acme-loud",)), environ={}) as discovery:
        assert discovery.problems == []
        discovery.mode = mode
        if mode == "locked":
            with pytest.raises(InferplaneError, match=r"acme-loud 1\.0 changes the core.*PageSizes\.allows") as caught:
                tell_selection(plan, discovery)
            assert caught.value.code == "plugin.tampering"
            return
        told = tell_selection(plan, discovery)
    earlier, warning = told.warnings
    assert earlier == "earlier"
    assert "plugin acme-loud 1.0 changes the core" in warning
    assert "inferplane_api.spec.PageSizes.allows" in warning
    assert "remedy: --disable-plugins acme-loud" in warning


def test_a_model_that_changes_the_core_is_named(patch: Callable[..., Component], warnings: Any) -> None:
    quiet, model = patch("acme_quiet", "VALUE = 2"), patch("acme_loud", SOURCES["a function"][0])
    plan: Any = type("Plan", (), {})()
    plan.plugins_mode, plan.platform, plan.checkpoint_format, plan.architecture = "auto", quiet, quiet, model
    plan.attention, plan.ops, plan.linear, plan.hooks = (), (), (), ()
    plan.logits_processors = ()
    load = Loader(plan)
    load(quiet)
    load(plan.architecture)
    assert warnings() == [f"plugin acme_loud 1.0 changes the core, which no plugin may: it rebinds {NAME}"]
