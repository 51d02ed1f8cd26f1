"""`python -m inferplane_api.testing.child`: imports a distribution's descriptors, runs its probes, says what that did.

One request on stdin, one answer on a private copy of stdout; what the plugin prints goes to a file, and is reported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from inferplane_api.internal.loading import find
from inferplane_api.internal.option_values import option_values
from inferplane_api.spec import GROUPS, HostInfo, PlatformSpec
from inferplane_api.testing.observed import Entry, Imported, Inspect, Inspected, Observation, Probed

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = frozenset({"torch", "transformers", "inferplane"})
"""Top-level modules that a descriptor never imports, unless they are its own."""

HOOKS = "inferplane.plugins"
"""The group whose values are no descriptors but hold hooks."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Watch:
    """Notes the process's state, and later what changed since."""

    def __init__(self, capture: IO[bytes], own: list[str]) -> None:
        self._capture = capture
        self._own = own
        self._mark()

    def _mark(self) -> None:
        self._modules = set(sys.modules)
        self._settings = _settings()
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._num_native = _native_threads()
        sys.stdout.flush()
        self._printed = os.fstat(self._capture.fileno()).st_size
        self._start = time.perf_counter()

    def observe(self, stage: str, subject: str) -> Observation:
        """What changed; starts anew."""
        seconds = time.perf_counter() - self._start
        sys.stdout.flush()
        self._capture.seek(self._printed)
        settings = _settings()
        changed = [name for name in {*settings, *self._settings} if settings.get(name) != self._settings.get(name)]
        threads = [thread.name for thread in threading.enumerate() if thread.ident not in self._threads]
        if not threads and _native_threads() > self._num_native:
            threads = [f"{_native_threads() - self._num_native} native"]
        observation = Observation(
            stage=stage,
            subject=subject,
            seconds=seconds,
            modules=self._forbidden(),
            environment=sorted(changed),
            threads=threads,
            stdout=self._capture.read(500).decode(errors="replace"),
        )
        self._mark()
        return observation

    def _forbidden(self) -> list[str]:
        found = set()
        for name in set(sys.modules) - self._modules:
            top = name.partition(".")[0]
            file = getattr(sys.modules[name], "__file__", None) or ""
            native = file.endswith(tuple(EXTENSION_SUFFIXES)) and top not in sys.stdlib_module_names
            if top not in self._own and (top in HEAVY or (native and top != "msgspec")):
                found.add(top)
        return sorted(found)


def _settings() -> dict[str, str]:
    settings = {f"variable {name}": value for name, value in os.environ.items()}
    settings["working folder"] = str(Path.cwd())
    settings["sys.path"] = os.pathsep.join(sys.path)
    settings.update({f"handler of {number.name}": str(signal.getsignal(number)) for number in SIGNALS})
    return settings


def _native_threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def inspect(request: Inspect, capture: IO[bytes]) -> Inspected:
    """Import every descriptor, then call every platform's probe twice where that is asked for."""
    imported, observations, probes = [], [], []
    watch = Watch(capture, request.own)
    seen: set[str] = set()
    for entry in request.entries:
        value, error = _attempt(lambda path=entry.value: find(path))
        imported.append(_imported(entry, value, error))
        module = entry.value.partition(":")[0]
        if module not in seen:
            seen.add(module)
            observations.append(watch.observe("descriptor", module))
        if request.probe and isinstance(value, PlatformSpec):
            probes.append(value)
    probed = []
    for spec in probes:
        watch.observe("", "")
        probed.append(_probe(spec, request))
        observations.append(watch.observe("probe", spec.probe))
    return Inspected(imported=imported, probed=probed, observations=observations)


def _imported(entry: Entry, value: Any, error: str) -> Imported:
    expected = GROUPS.get(entry.group)
    if not error and entry.group == HOOKS:
        _, error = _attempt(lambda: _register(value, entry.name))
    if error or expected is None:
        return Imported(entry=entry, error=error)
    if not isinstance(value, expected):
        return Imported(entry=entry, type_name=type(value).__name__)
    return Imported(entry=entry, type_name=type(value).__name__, value=msgspec.to_builtins(value))


def _register(plugin: Any, name: str) -> None:
    """Raise what core would raise for a hook that does not exist."""
    import pluggy

    from inferplane_api import hooks

    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin, name)
    manager.check_pending()


def _host_for(spec: PlatformSpec, host: HostInfo, given: dict[str, Any]) -> HostInfo:
    """The host with the platform's options, as core hands it to a probe."""
    return msgspec.structs.replace(host, options={**option_values(spec, os.environ), **given})


def _probe(spec: PlatformSpec, request: Inspect) -> Probed:
    function = spec.probe
    given = {option.name: request.options[option.name] for option in spec.options if option.name in request.options}
    results, names = [], []
    for _ in range(2):
        value, error = _attempt(lambda: find(function)(_host_for(spec, request.host, given)))
        if error:
            return Probed(function=function, error=error)
        names.append(type(value).__name__)
        results.append(msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value))
    return Probed(function=function, results=results, type_names=names)


def _attempt(action: Any) -> tuple[Any, str]:
    try:
        return action(), ""
    except BaseException as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextlib.contextmanager
def private_stdout() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """(a file that gets what is printed, the real stdout)."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "wb") as channel, tempfile.TemporaryFile() as capture:
        os.dup2(capture.fileno(), 1)
        yield capture, channel


def main() -> None:
    """Answer the one request. Ends hard, so that nothing a plugin left behind keeps the process."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Inspect)
    with private_stdout() as (capture, channel):
        channel.write(msgspec.json.encode(inspect(request, capture)))
        channel.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
