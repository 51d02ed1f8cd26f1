"""Loads what a Plan names, in the process that runs it, and only if it is the version that was planned with.

A `Loader` also watches the core: what a plugin rebinds in it is attributed to that plugin.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.plan.types import Component, Plan
from inferplane.plugins.inventory import CORE
from inferplane.plugins.modes import LOCKED
from inferplane.plugins.tamper import Change, Watch

log = get_logger(__name__)

IMPORT_FAILED = "plan.load"
"""Code of the error: a component's own code cannot be imported."""


def load_component(component: Component) -> Any:
    """Import "module:attribute", or a module.

    Raises InferplaneError when the distribution's version is not the Plan's, or the import fails, naming distribution
    and version.
    """
    owner = f"{component.distribution} {component.version}"
    reinstall = f"pip install --force-reinstall --no-deps {component.distribution}=={component.version}"
    if not component.distribution:  # a class that the user named, of a module that no package brought
        owner, reinstall = "the user's own code", "correct it, or the name that was given"
    if component.distribution and (present := _present_version(component)) != component.version:
        raise InferplaneError(
            f"{component.id} was planned with {owner}, and this process finds {present}",
            code="plan.version",
            remedy="restart, so that everything is planned with what is installed now",
        )
    module, _, attributes = component.load.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in filter(None, attributes.split(".")):
            value = getattr(value, name)
    except Exception as error:  # it is a plugin's code that runs here
        raise InferplaneError(
            f"{component.id} of {owner} cannot be loaded from {component.load!r}: {type(error).__name__}: {error}",
            code=IMPORT_FAILED,
            remedy=reinstall,
        ) from error
    return value


def _present_version(component: Component) -> str:
    try:
        return importlib.metadata.version(component.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "no version"


def construct(load: Callable[[Component], Any], component: Component, *arguments: object) -> Any:
    """Load a component's class and call it. Raises InferplaneError, naming distribution and version, for whatever the
    plugin raises; the traceback of what is no InferplaneError is logged."""
    factory = load(component)
    try:
        return factory(*arguments)
    except Exception as error:
        owner = f"{component.distribution} {component.version}" if component.distribution else "the user's own code"
        subject = f"{component.id} of {owner}"
        if isinstance(error, InferplaneError):
            raise InferplaneError(f"{subject}: {error.message}", code=error.code, remedy=error.remedy) from error
        log.exception("%s cannot be made", subject)
        raise InferplaneError(
            f"{subject} cannot be made: {type(error).__name__}: {error}",
            code="plugin.construct",
            remedy=f"the traceback is above; report it to the authors of {component.distribution or component.load}",
        ) from error


class Loader:
    """`load_component` for the components of one Plan, with a guard against plugins that change the core.

    A change is a warning that names the plugin and what it rebound, and an error when the plugins are locked. Changes
    that constructors make are seen at the next load and at `check`.
    """

    def __init__(self, plan: Plan) -> None:
        self._locked = plan.plugins_mode == LOCKED
        plugins = [component for component in components_of(plan) if component.distribution != CORE]
        self._owners = {component.load.partition(":")[0].partition(".")[0]: component for component in plugins}
        self._watch: Watch | None = None
        self._loaded: set[Component] = set()
        self._last: Component | None = None

    def __call__(self, component: Component) -> Any:
        """Load a component. Raises InferplaneError as `load_component`, and for a change of the core when locked."""
        if component.distribution == CORE or component in self._loaded:
            return load_component(component)
        if self._watch is None:
            self._watch = Watch()
        self.check()
        value = load_component(component)
        self._loaded.add(component)
        self._last = component
        self.check()
        return value

    def check(self) -> None:
        """Report what was rebound since the last look; whose code it is, or else the component that was loaded last."""
        if self._watch is None or self._last is None:
            return
        changes: dict[str, list[str]] = {}
        for change in self._watch.changes(self._owners):
            changes.setdefault(self._owner_of(change), []).append(change.name)
        for owner, names in changes.items():
            self._report(owner, names)

    def _owner_of(self, change: Change) -> str:
        component = self._owners.get(change.origin) or self._last
        assert component is not None
        return f"{component.distribution} {component.version}"

    def _report(self, owner: str, names: list[str]) -> None:
        message = f"plugin {owner} changes the core, which no plugin may: it rebinds {', '.join(names)}"
        if self._locked:
            remedy = f"--disable-plugins {owner.split()[0]}, or ask its authors to use the contract"
            raise InferplaneError(message, code="plugin.tampering", remedy=remedy)
        log.warning("%s", message)


def components_of(plan: Plan) -> Iterator[Component]:
    """Every component that a Plan names."""
    yield plan.platform
    yield plan.checkpoint_format
    if plan.architecture is not None:
        yield plan.architecture
    yield from plan.attention
    yield from (binding.provider for binding in plan.ops)
    yield from (component for _, component in plan.linear)
    yield from (processor.component for processor in plan.logits_processors)
    yield from plan.hooks
