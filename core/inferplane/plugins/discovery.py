"""Finds every plugin that may be used, reads its descriptors and probes its hardware, without importing any of it here.

One child a distribution, all at the same time. What goes wrong in a plugin is a record, not an exception.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from inferplane.errors import InferplaneError
from inferplane.host.hardware import (
    PROCESSING_ACCELERATOR,
    HardwareTable,
    base_class,
    has_device_node,
    load_hardware_table,
    on_bus,
    seen,
)
from inferplane.plugins.inspection import PLATFORMS, Inspected, Inspection, inspect_distribution
from inferplane.plugins.inventory import KINDS, PluginEntry, list_entry_points
from inferplane.plugins.modes import admit
from inferplane.plugins.ownership import ownership_problems
from inferplane.plugins.process import ChildWorker, Worker
from inferplane.plugins.records import (
    NOT_EXPOSED,
    Found,
    FoundAttention,
    FoundFormat,
    FoundKernel,
    FoundModel,
    FoundPlatform,
    LeftOut,
    Problem,
    Refused,
)
from inferplane.plugins.variables import unknown_variables
from inferplane.plugins.wire import Answer, Call, EntryRef, Hook, Request, encode
from inferplane_api.model import ModelSpec
from inferplane_api.spec import (
    AttentionRequest,
    HostInfo,
    KernelRequest,
    PlatformSpec,
    ProbeResult,
    ProbeState,
    Reason,
    Verdict,
)

if TYPE_CHECKING:
    from inferplane.config import PlatformConfig
    from inferplane_api.hooks import Finding

TIMEOUT = 10.0
"""Seconds that a distribution's descriptors and probes may take together, and a later call."""

T = TypeVar("T")


class Discovery:
    """What is installed and usable on this host. A context manager: children live until `close`, for `check`."""

    def __init__(
        self,
        host: HostInfo,
        *,
        hardware: HardwareTable | None = None,
        entries: Iterable[PluginEntry] = (),
        left_out: Iterable[LeftOut] = (),
        inspections: Iterable[Inspection] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        self.host = host
        self.hardware = hardware or load_hardware_table()
        self.entries = tuple(entries)
        """Every usable entry point, of kinds without descriptors too."""
        self.left_out = tuple(left_out)
        """What is installed and may not be used."""
        self.platforms: list[FoundPlatform] = []
        self.attention: list[FoundAttention] = []
        self.kernels: list[FoundKernel] = []
        self.formats: list[FoundFormat] = []
        self.models: list[FoundModel] = []
        self.refused: list[Refused] = []
        self.problems: list[Problem] = []
        self.seconds: dict[str, float] = {}
        """Per distribution, how long its child took."""
        self._workers: dict[str, Worker] = {}
        self._timeout = timeout
        for inspection in inspections:
            self._add(inspection)

    def __enter__(self) -> Discovery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the children. May be called again."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def check(self, id: str, request: AttentionRequest | KernelRequest) -> Verdict:
        """Ask a candidate's own `check`, in its child; yes for one that declares none. A failing check is a no."""
        kind, candidates = (
            ("attention", self.attention) if isinstance(request, AttentionRequest) else ("kernel", self.kernels)
        )
        for found in cast("list[Found[Any]]", candidates):
            if found.spec.id == id:
                if found.spec.check is None:
                    return Verdict()
                answer = self._call(found.distribution, found.spec.check, kind, request, Verdict)
                return Verdict((answer,)) if isinstance(answer, Reason) else answer
        raise KeyError(id)

    def describe(self, model_type: str, config: dict[str, Any]) -> ModelSpec | None:
        """What a model plugin makes of a config, in its child; None when no plugin has the model type.

        Raises InferplaneError when the plugin fails.
        """
        for found in self.models:
            if found.spec.model_type == model_type:
                answer = self._call(found.distribution, found.spec.describe, "describe", config, ModelSpec)
                if isinstance(answer, Reason):
                    owner = f"{found.distribution} {found.version}"
                    raise InferplaneError(
                        f"model {model_type!r} of {owner} cannot read the config: {answer}",
                        code="model.describe",
                        remedy=f"pip install --upgrade {found.distribution}",
                    )
                return answer
        return None

    def findings(self, hook: str, **arguments: Any) -> list[Finding]:
        """Call a hook of every `inferplane.plugins` entry, one at a time, in its child; a failing one is an error."""
        from inferplane_api.hooks import Finding

        findings: list[Finding] = []
        for entry in self.entries:
            if entry.kind == "plugins":
                reference = EntryRef(entry.group, entry.name, entry.value)
                request = Hook(reference, hook, msgspec.Raw(encode(arguments)), self._timeout)
                answer = self._ask(entry.distribution, request, list[Finding])
                if isinstance(answer, Reason):
                    subject = f"{entry.name} of {entry.distribution} {entry.version}"
                    message = f"its hook {hook} failed: {answer}"
                    findings.append(Finding(level="error", subject=subject, message=message))
                else:
                    findings += answer
        return findings

    def raise_errors(self) -> None:
        """Raise the first error among the problems."""
        for problem in self.problems:
            if problem.level == "error":
                raise InferplaneError(problem.message, code=problem.code, remedy=problem.remedy)

    def _call(self, distribution: str, function: str, kind: str, argument: object, result: type[T]) -> T | Reason:
        request = Call(function, msgspec.Raw(encode(argument)), kind, self._timeout)
        return self._ask(distribution, request, result)

    def _ask(self, distribution: str, request: Request, result: type[T]) -> T | Reason:
        if distribution not in self._workers:
            self._workers[distribution] = ChildWorker()
        replies = self._workers[distribution].ask(request, time.monotonic() + self._timeout)
        if replies.failure is not None:
            return replies.failure
        answer = next(reply for reply in replies.messages if isinstance(reply, Answer))
        if answer.error:
            return Reason(code="plugin.raised", hint=answer.error)
        try:
            return msgspec.msgpack.decode(answer.value, type=result)
        except msgspec.MsgspecError as error:
            return Reason(code="plugin.noise", hint=str(error))

    def _add(self, inspection: Inspection) -> None:
        self.seconds[inspection.distribution] = inspection.seconds
        if inspection.worker is not None:
            self._workers[inspection.distribution] = inspection.worker
        lists: dict[str, list[Any]] = {
            "inferplane.attention": self.attention,
            "inferplane.kernels": self.kernels,
            "inferplane.quantization": self.formats,
            "inferplane.models": self.models,
        }
        for item in inspection.entries:
            entry = item.entry
            if entry.group == PLATFORMS:
                self.platforms.append(_platform(item, self.host, self.hardware))
            elif item.spec is None:
                self._refuse(item)
            else:
                found = Found(spec=item.spec, distribution=entry.distribution, version=entry.version)
                lists[entry.group].append(found)

    def _refuse(self, item: Inspected) -> None:
        entry, state = item.entry, item.result.state
        self.refused.append(
            Refused(
                group=entry.group,
                name=entry.name,
                distribution=entry.distribution,
                version=entry.version,
                state=state,
                reason=item.result.reasons[0],
            )
        )


def discover(
    host: HostInfo,
    config: PlatformConfig,
    *,
    timeout: float = TIMEOUT,
    strict: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Discovery:
    """Inspect every installed plugin that the user's lists allow.

    strict=False leaves errors in `problems` for a report instead of raising the first. Raises InferplaneError for an
    unknown name in a list, a lock file that does not hold, a duplicate id, an id in another distribution's namespace, an
    unknown INFERPLANE_* variable.
    """
    everything = list_entry_points()
    entries, left_out = admit(everything, config, environ)
    inspections = _inspect_all(entries, host, timeout)
    discovery = Discovery(host, entries=entries, left_out=left_out, inspections=inspections, timeout=timeout)
    discovery.problems += ownership_problems(discovery)
    discovery.problems += _unknown_groups(everything)
    unread = len(entries) < len(everything) or any(found.spec is None for found in discovery.platforms)
    discovery.problems += _variables(discovery, environ, unread=unread)
    if strict:
        try:
            discovery.raise_errors()
        except InferplaneError:
            discovery.close()
            raise
    return discovery


def _inspect_all(entries: list[PluginEntry], host: HostInfo, timeout: float) -> list[Inspection]:
    """One thread a distribution: each only waits for its child."""
    groups: dict[str, list[PluginEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.distribution, []).append(entry)
    results: dict[str, Inspection] = {}
    failures: list[OSError] = []

    def run(name: str) -> None:
        try:
            results[name] = inspect_distribution(groups[name], host, timeout)
        except OSError as error:  # the host cannot start another process: nobody's plugin is at fault
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        for inspection in results.values():
            if inspection.worker is not None:
                inspection.worker.close()
        message = f"cannot start a process to inspect plugins: {failures[0]}"
        remedy = "raise the limits on processes and memory"
        raise InferplaneError(message, code="plugin.process", remedy=remedy) from failures[0]
    return [results[name] for name in groups]


def _platform(item: Inspected, host: HostInfo, hardware: HardwareTable) -> FoundPlatform:
    entry = item.entry
    spec = item.spec if isinstance(item.spec, PlatformSpec) else None
    on_host = _evidence(spec, entry.distribution, host, hardware)
    return FoundPlatform(
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        spec=spec,
        result=_with_exposure(item.result, spec, host),
        on_host=on_host,
    )


def _evidence(spec: PlatformSpec | None, distribution: str, host: HostInfo, hardware: HardwareTable) -> bool:
    """Whether the platform's hardware is on this host; without a descriptor, what the package's name tells.

    A stranger's package without a readable descriptor counts as on this host only where the bus shows an accelerator
    that no known package is for: no false alarm on a host without one.
    """
    if spec is not None:
        return seen(spec.evidence, host)
    if (known := hardware.for_package(distribution)) is not None:
        return known.seen_on(host)
    return any(
        base_class(device) == PROCESSING_ACCELERATOR and not any(line.matches(device) for line in hardware.hardware)
        for device in host.pci_devices
    )


def _with_exposure(result: ProbeResult, spec: PlatformSpec | None, host: HostInfo) -> ProbeResult:
    """An ABSENT device that the bus shows and that has no node is in a container that does not pass it on."""
    if spec is None or result.state is not ProbeState.ABSENT or not spec.evidence.device_paths:
        return result
    if not on_bus(spec.evidence, host) or has_device_node(spec.evidence):
        return result
    if any(reason.code == NOT_EXPOSED for reason in result.reasons):
        return result
    want = ", ".join(spec.evidence.device_paths)
    reason = Reason(code=NOT_EXPOSED, field="device nodes", want=want, hint=spec.evidence.container_hint)
    return msgspec.structs.replace(result, reasons=(reason, *result.reasons))


def _variables(discovery: Discovery, environ: Mapping[str, str], *, unread: bool) -> list[Problem]:
    options = [option for found in discovery.platforms if found.spec for option in found.spec.options]
    problems = unknown_variables(environ, [option.variable for option in options if option.variable])
    # A plugin that was not read may be the one that declares it.
    return [msgspec.structs.replace(problem, level="warning") for problem in problems] if unread else problems


def _unknown_groups(entries: list[PluginEntry]) -> list[Problem]:
    unknown = sorted({(entry.group, entry.distribution, entry.version) for entry in entries if entry.kind not in KINDS})
    return [
        Problem(
            level="warning",
            code="plugin.group",
            message=f"{distribution} {version} registers for the unknown group {group!r}",
            remedy=f"known kinds: {', '.join(KINDS)}",
        )
        for group, distribution, version in unknown
    ]
