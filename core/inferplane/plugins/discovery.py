"""Finds every plugin that may be used, reads its descriptors and probes its hardware, without importing any of it here.

One child a distribution, all at the same time. What goes wrong in a plugin is a record, not an exception.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from inferplane.errors import InferplaneError
from inferplane.host.hardware import HardwareTable, load_hardware_table
from inferplane.plugins.child import HOOKS
from inferplane.plugins.evidence import found_platform
from inferplane.plugins.inspection import (
    PLATFORMS,
    Inspected,
    Inspection,
    OptionSources,
    broken_inspection,
    inspect_distribution,
)
from inferplane.plugins.inventory import API, CORE, KINDS, PluginEntry, lowest_api, read_installed
from inferplane.plugins.modes import LOCKED, admit
from inferplane.plugins.ownership import ownership_problems
from inferplane.plugins.policy import Policy, policy_from
from inferplane.plugins.process import ChildWorker, ProcessNotStarted, Worker
from inferplane.plugins.records import (
    NOT_LISTED,
    Found,
    FoundAttention,
    FoundFormat,
    FoundHooks,
    FoundKernel,
    FoundModel,
    FoundPlatform,
    FoundProcessor,
    LeftOut,
    Problem,
    Refused,
)
from inferplane.plugins.variables import unknown_variables
from inferplane.plugins.wire import Answer, Call, EntryRef, Hook, Request, encode
from inferplane_api import API_VERSION
from inferplane_api.deprecated import deprecated_uses
from inferplane_api.model import ModelSpec
from inferplane_api.spec import (
    AttentionRequest,
    HostInfo,
    KernelRequest,
    Reason,
    Verdict,
)

if TYPE_CHECKING:
    from inferplane.config import PlatformConfig
    from inferplane_api.hooks import Finding

TIMEOUT = 10.0
"""Seconds that a distribution's descriptors and probes may take together, and a later call."""

T = TypeVar("T")


class HookAnswer(NamedTuple):
    """What one plugin made of one hook."""

    plugin: FoundHooks
    hook: str
    findings: list[Finding]
    failure: Reason | None = None

    @property
    def owner(self) -> str:
        """ "NAME of DISTRIBUTION VERSION"."""
        return f"{self.plugin.spec.name} of {self.plugin.distribution} {self.plugin.version}"

    def describe(self) -> str:
        """The failure as a person should read it."""
        return f"plugin {self.owner}: its hook {self.hook} failed: {self.failure}"


class Discovery:
    """What is installed and usable on this host. A context manager: children live until `close`, for `check`."""

    def __init__(
        self,
        host: HostInfo,
        *,
        hardware: HardwareTable | None = None,
        entries: Iterable[PluginEntry] = (),
        left_out: Iterable[LeftOut] = (),
        mode: str = "auto",
        inspections: Iterable[Inspection] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        self.host = host
        self.hardware = hardware or load_hardware_table()
        self.entries = tuple(entries)
        """Every usable entry point, of kinds without descriptors too."""
        self.left_out = tuple(left_out)
        """What is installed and may not be used."""
        self.mode = mode
        """How plugins were admitted: "auto", "listed" or "locked"."""
        self.platforms: list[FoundPlatform] = []
        self.attention: list[FoundAttention] = []
        self.kernels: list[FoundKernel] = []
        self.formats: list[FoundFormat] = []
        self.models: list[FoundModel] = []
        self.logits_processors: list[FoundProcessor] = []
        self.hook_plugins: list[FoundHooks] = []
        """Those of the group `inferplane.plugins` none of whose hooks has failed."""
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

    def call_hook(self, hook: str, **arguments: Any) -> list[HookAnswer]:
        """Call a hook of every plugin that implements it, one plugin at a time, each in its child.

        One that raises, crashes or hangs is marked failed: it is in no later call and no Plan; the others go on.
        """
        from inferplane_api.hooks import Finding

        answers: list[HookAnswer] = []
        for plugin in list(self.hook_plugins):
            if hook in plugin.spec.hooks:
                reference = EntryRef(HOOKS, plugin.spec.name, plugin.spec.load)
                request = Hook(reference, hook, msgspec.Raw(encode(arguments)), self._timeout)
                answer = self._ask(plugin.distribution, request, list[Finding])
                if isinstance(answer, Reason):
                    self.hook_plugins.remove(plugin)
                    # A hook that took its child along must not answer for the checks of the same distribution.
                    self._workers.pop(plugin.distribution).close()
                    answers.append(HookAnswer(plugin, hook, [], answer))
                else:
                    answers.append(HookAnswer(plugin, hook, answer))
        return answers

    def findings(self, hook: str, **arguments: Any) -> list[Finding]:
        """What a hook of every plugin found; one that fails is an error finding."""
        from inferplane_api.hooks import Finding

        findings: list[Finding] = []
        for answer in self.call_hook(hook, **arguments):
            findings += answer.findings
            if answer.failure is not None:
                findings.append(Finding(level="error", subject="hook", message=answer.describe()))
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
        self._tell_patched([entry for entry in self.entries if entry.distribution == distribution], replies.patched)
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
            "inferplane.logits_processors": self.logits_processors,
            HOOKS: self.hook_plugins,
        }
        self._tell_patched([item.entry for item in inspection.entries], inspection.patched)
        for item in inspection.entries:
            try:
                self._add_entry(item, lists)
            except Exception as error:  # data that decodes and that nobody foresaw: this entry's fault alone
                self._add_entry(broken_inspection([item.entry], inspection.distribution, error).entries[0], lists)

    def _add_entry(self, item: Inspected, lists: Mapping[str, list[Any]]) -> None:
        entry = item.entry
        if entry.group == PLATFORMS:
            platform = found_platform(item, self.host, self.hardware)
            self._tell_deprecated(item)
            self.platforms.append(platform)
        elif item.spec is None:
            self._refuse(item)
        else:
            oldest = API_VERSION if entry.distribution == CORE else lowest_api(entry.api_range)
            found = Found(spec=item.spec, distribution=entry.distribution, version=entry.version, api=oldest)
            self._tell_deprecated(item)
            lists[entry.group].append(found)

    def _tell_patched(self, entries: Iterable[PluginEntry], names: Sequence[str]) -> None:
        """A plugin that changes the core, though only in its own child: a warning, and an error when locked."""
        owners = {(entry.distribution, entry.version) for entry in entries}
        for distribution, version in owners if names else ():
            self.problems.append(
                Problem(
                    level="error" if self.mode == LOCKED else "warning",
                    code="plugin.tampering",
                    message=f"plugin {distribution} {version} changes the core, which no plugin may: "
                    f"its descriptor, probe or hook rebinds {', '.join(names)}",
                    remedy=f"--disable-plugins {distribution}, or ask its authors to use the contract",
                )
            )

    def _tell_deprecated(self, item: Inspected) -> None:
        """One warning for each deprecated field or value of a descriptor."""
        entry = item.entry
        for use in deprecated_uses(item.spec) if item.spec is not None else ():
            message = (
                f"{entry.name!r} of plugin {entry.distribution} {entry.version} uses {use.name}, deprecated since "
                f"{API} {use.since} and gone in {use.removal}: use {use.replacement}"
            )
            remedy = f"pip install --upgrade {entry.distribution}, or ask its authors to use {use.replacement}"
            self.problems.append(Problem(level="warning", code="api.deprecated", message=message, remedy=remedy))

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
    unknown name in a list, a lock file that does not hold, a duplicate id, an id in another's namespace, or an unknown
    INFERPLANE_* variable.
    """
    everything, faults = read_installed()
    entries, left_out = admit(everything, config, environ)
    inspections = _inspect_all(entries, host, timeout, OptionSources(config.platform_option, environ))
    discovery = Discovery(
        host,
        entries=entries,
        left_out=left_out,
        mode=config.plugins_mode,
        inspections=inspections,
        timeout=timeout,
    )
    discovery.problems += ownership_problems(discovery)
    discovery.problems += _unknown_groups(entries)
    discovery.problems += _parted(entries, left_out, policy_from(config.plugins, config.disable_plugins, environ))
    discovery.problems += [
        Problem(
            level="warning",
            code="plugin.metadata",
            message=f"a plugin's metadata cannot be read, so it is not used: {fault}",
            remedy="install the package again, or delete this folder",
        )
        for fault in faults
    ]
    unread = bool(faults) or len(entries) < len(everything) or any(found.spec is None for found in discovery.platforms)
    discovery.problems += _variables(discovery, environ, unread=unread)
    if strict:
        try:
            discovery.raise_errors()
        except InferplaneError:
            discovery.close()
            raise
    return discovery


def _inspect_all(
    entries: list[PluginEntry], host: HostInfo, timeout: float, sources: OptionSources
) -> list[Inspection]:
    """One thread a distribution: each only waits for its child. Raises InferplaneError when no child can be started."""
    groups: dict[str, list[PluginEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.distribution, []).append(entry)
    results: dict[str, Inspection] = {}
    failures: list[ProcessNotStarted] = []

    def run(name: str) -> None:
        try:
            results[name] = inspect_distribution(groups[name], host, timeout, sources)
        except ProcessNotStarted as error:
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


def _variables(discovery: Discovery, environ: Mapping[str, str], *, unread: bool) -> list[Problem]:
    options = [option for found in discovery.platforms if found.spec for option in found.spec.options]
    return unknown_variables(environ, [option.variable for option in options if option.variable], unread=unread)


def _parted(entries: Iterable[PluginEntry], left_out: Iterable[LeftOut], policy: Policy) -> list[Problem]:
    """A list that names one entry point leaves out the others of its package, such as a platform's own kernels."""
    owners = {entry.distribution for entry in entries if entry.name in (policy.allow or ())}
    return [
        Problem(
            level="warning",
            code=NOT_LISTED,
            message=f"{item.distribution} {item.version} is used in part, without {', '.join(item.names)}: "
            f"{item.reason.hint}",
            remedy=item.remedy,
        )
        for item in left_out
        if item.distribution in owners and item.reason.code == NOT_LISTED
    ]


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
