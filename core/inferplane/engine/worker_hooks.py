"""Calls the worker hooks of a Plan's plugins, one plugin at a time; a failing hook marks that plugin only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.plan.load import IMPORT_FAILED

if TYPE_CHECKING:
    from pluggy import PluginManager

    from inferplane.plan.types import Component, Plan

log = get_logger(__name__)


class WorkerHooks:
    """`start` once the platform is open, `stop` at an end in good order; never on the token path."""

    def __init__(self, plan: Plan, load: Callable[[Component], Any], *, role: str = "engine", rank: int = 0) -> None:
        self._components = {_name(component): component for component in plan.hooks}
        self._load = load
        self._arguments = {"role": role, "rank": rank}
        self._manager: PluginManager | None = None

    def start(self) -> None:
        """Load the plugins and call inferplane_worker_start.

        Raises InferplaneError for another version than was planned, and for a change of the core when locked.
        """
        if self._components:
            self._manager = self._register()
            self._call("inferplane_worker_start")

    def stop(self) -> None:
        """Call inferplane_worker_stop of the plugins that have not failed."""
        if self._manager is not None:
            self._call("inferplane_worker_stop")
            self._manager = None

    def _register(self) -> PluginManager:
        import pluggy

        from inferplane_api import hooks

        manager = pluggy.PluginManager(hooks.PROJECT)
        manager.add_hookspecs(hooks)
        for name, component in self._components.items():
            try:
                manager.register(self._load(component), name)
            except InferplaneError as error:
                if error.code != IMPORT_FAILED:
                    raise
                self._report(name, "import", error)
            except Exception as error:
                self._report(name, "registration", error)
        return manager

    def _call(self, hook: str) -> None:
        manager = self._manager
        assert manager is not None
        plugins = manager.list_name_plugin()
        for name, plugin in plugins:
            others = [other for _, other in plugins if other is not plugin and other is not None]
            try:
                manager.subset_hook_caller(hook, others)(**self._arguments)
            except Exception as error:
                self._report(name, hook, error)
                manager.unregister(plugin)

    def _report(self, name: str, what: str, error: Exception) -> None:
        component = self._components[name]
        owner = f"{component.distribution} {component.version}"
        log.warning("plugin %s of %s: %s failed and it is not called again: %s: %s",
                    component.id, owner, what, type(error).__name__, error)  # fmt: skip


def _name(component: Component) -> str:
    """Entry-point names are unique within a distribution only."""
    return f"{component.distribution}:{component.id}"
