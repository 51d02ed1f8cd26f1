"""Reads and probes one distribution through its worker; maps every way of failing to a state and a reason."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from inferplane.config.secrets import is_secret
from inferplane.errors import InvalidValue
from inferplane.plugins.child import HOOKS, describe_exception
from inferplane.plugins.inventory import API, CORE, PluginEntry, admits
from inferplane.plugins.options import option_values, resolve_options
from inferplane.plugins.process import ChildWorker, LocalWorker, ProcessNotStarted, Replies, Worker
from inferplane.plugins.records import HookPlugin
from inferplane.plugins.soundness import torch_mismatch, unsound
from inferplane.plugins.wire import Answer, EntryRef, Load, Loaded, Probe
from inferplane_api import API_VERSION
from inferplane_api.internal.option_values import Value
from inferplane_api.spec import GROUPS, HostInfo, PlatformSpec, ProbeResult, ProbeState, Reason

PLATFORMS = "inferplane.platforms"


class Inspected(NamedTuple):
    """One entry point after inspection: a spec, or the state and reason of having none; a result for a platform."""

    entry: PluginEntry
    spec: msgspec.Struct | None
    state: ProbeState | None
    """None for a usable descriptor that is no platform."""
    result: ProbeResult


class Inspection(NamedTuple):
    """One distribution."""

    distribution: str
    entries: list[Inspected]
    worker: Worker | None
    """Alive for later calls; None when nothing was started."""
    seconds: float
    patched: tuple[str, ...] = ()
    """Names of the core that the distribution rebound in its child."""


DESCRIPTORS: dict[str, type[msgspec.Struct]] = {**GROUPS, HOOKS: HookPlugin}
"""Groups that a child reads, and what it answers for an entry of each."""


class OptionSources(NamedTuple):
    """Where the values of the platforms' own options come from."""

    given: Mapping[str, str] = MappingProxyType({})
    """By --platform-option; a platform takes what it declares."""
    environ: Mapping[str, str] = MappingProxyType({})


def inspect_distribution(
    entries: list[PluginEntry], host: HostInfo, seconds: float, sources: OptionSources | None = None
) -> Inspection:
    """Import the descriptors of one distribution and probe its platforms, within `seconds` altogether.

    Of an incompatible distribution only the platforms are imported, in a child, for the evidence of their hardware; an
    incompatible platform is not probed. Raises ProcessNotStarted; what else goes wrong is a BROKEN entry.
    """
    started = time.monotonic()
    first = entries[0]
    known = [entry for entry in entries if entry.group in DESCRIPTORS]
    try:
        return _inspect(known, first.distribution, host, started + seconds, sources or OptionSources())._replace(
            seconds=time.monotonic() - started
        )
    except ProcessNotStarted:
        raise
    except Exception as error:
        return broken_inspection(known, first.distribution, error)


def broken_inspection(entries: list[PluginEntry], distribution: str, error: Exception) -> Inspection:
    """What is said of a distribution whose data made the inspection itself fail."""
    reason = Reason(code="plugin.inspection", hint=describe_exception(error))
    return Inspection(distribution, [_refused(entry, ProbeState.BROKEN, reason) for entry in entries], None, 0.0)


def _inspect(
    known: list[PluginEntry], distribution: str, host: HostInfo, deadline: float, sources: OptionSources
) -> Inspection:
    if not known:
        return Inspection(distribution, [], None, 0.0)
    if reason := incompatibility(known[0], host):
        return _inspect_incompatible(known, distribution, deadline, reason)
    worker: Worker = LocalWorker() if distribution == CORE else ChildWorker()
    try:
        loaded, patched = _load(worker, known, deadline)
        probed, patched_by_probes = _probe(worker, loaded, host, deadline, sources)
    except BaseException:
        worker.close()
        raise
    return Inspection(distribution, probed, worker, 0.0, (*patched, *patched_by_probes))


def _inspect_incompatible(known: list[PluginEntry], distribution: str, deadline: float, reason: Reason) -> Inspection:
    """Whether its hardware is here decides between a refusal and a warning, so its platforms are read all the same.

    A descriptor that this contract cannot read, being of another, leaves that unknown.
    """
    platforms = [entry for entry in known if entry.group == PLATFORMS]
    loaded: dict[PluginEntry, Inspected] = {}
    patched: tuple[str, ...] = ()
    if platforms:
        worker = ChildWorker()
        try:
            items, patched = _load(worker, platforms, deadline)
        finally:
            worker.close()
        loaded = {item.entry: item for item in items}
    refused = []
    for entry in known:
        item = loaded.get(entry)
        unread = item.result.reasons if item is not None and item.spec is None else ()
        result = ProbeResult(state=ProbeState.INCOMPATIBLE, reasons=(reason, *unread))
        refused.append(Inspected(entry, item.spec if item is not None else None, ProbeState.INCOMPATIBLE, result))
    return Inspection(distribution, refused, None, 0.0, patched)


def incompatibility(entry: PluginEntry, host: HostInfo) -> Reason | None:
    """Why a distribution's own requirements rule it out, told from metadata alone."""
    if not admits(entry.api_range, API_VERSION):
        hint = f"pip install --upgrade {entry.distribution}, or a core that it fits"
        return Reason(code="api.range", field=API, want=entry.api_range or "", have=API_VERSION, hint=hint)
    return torch_mismatch(entry.torch_range, host.torch_version)


def _load(worker: Worker, entries: list[PluginEntry], deadline: float) -> tuple[list[Inspected], tuple[str, ...]]:
    references = [EntryRef(entry.group, entry.name, entry.value) for entry in entries]
    replies = worker.ask(Load(references, _remaining(deadline)), deadline)
    answers = {reply.index: reply for reply in replies.messages if isinstance(reply, Loaded)}
    loaded = [_described(entry, answers.get(index), replies) for index, entry in enumerate(entries)]
    return loaded, replies.patched


def _described(entry: PluginEntry, answer: Loaded | None, replies: Replies) -> Inspected:
    if answer is None:
        reason = replies.failure or Reason(code="plugin.noise", hint="its answer is missing")
        return _refused(entry, ProbeState.BROKEN, reason)
    if answer.error:
        return _refused(entry, ProbeState.BROKEN, Reason(code="plugin.import", hint=answer.error))
    try:
        spec = msgspec.msgpack.decode(answer.value, type=DESCRIPTORS[entry.group])
    except msgspec.MsgspecError as error:
        return _refused(entry, ProbeState.BROKEN, Reason(code="plugin.descriptor", hint=str(error)))
    if (own := spec_name(spec)) != entry.name:
        reason = Reason(code="plugin.name", field="entry point", want=own, have=entry.name)
        return _refused(entry, ProbeState.BROKEN, reason)
    if entry.group in NAMESPACED and not valid_id(own):
        reason = Reason(code="plugin.id", field="id", want="<namespace>.<name>", have=own)
        return _refused(entry, ProbeState.BROKEN, reason)
    if (fault := unsound(spec)) is not None:
        return _refused(entry, ProbeState.BROKEN, fault)
    return Inspected(entry, spec, None, ProbeResult(state=ProbeState.PRESENT))


NAMESPACED = ("inferplane.attention", "inferplane.kernels", "inferplane.quantization")
"""Groups whose names are ids with a namespace."""


def valid_id(text: str) -> bool:
    """True for "<namespace>.<name>"."""
    namespace, _, name = text.partition(".")
    return bool(namespace and name)


def spec_name(spec: msgspec.Struct) -> str:
    """What the entry point must be called: the spec's id, model type or name."""
    for field in ("id", "model_type", "name"):
        if hasattr(spec, field):
            return str(getattr(spec, field))
    raise AssertionError(f"{type(spec).__name__} has no name")


def _probe(
    worker: Worker, loaded: list[Inspected], host: HostInfo, deadline: float, sources: OptionSources
) -> tuple[list[Inspected], tuple[str, ...]]:
    """Probe the platforms among the loaded entries; the others pass through."""
    results: dict[int, ProbeResult] = {}
    patched: tuple[str, ...] = ()
    wanted: dict[int, tuple[str, dict[str, Value]]] = {}
    variables: dict[str, str] = {}
    for index, item in enumerate(loaded):
        if isinstance(item.spec, PlatformSpec):
            if reason := torch_mismatch(item.spec.requires_torch or None, host.torch_version, item.spec.torch_builds):
                results[index] = ProbeResult(state=ProbeState.INCOMPATIBLE, reasons=(reason,))
                continue
            try:
                options = option_values(resolve_options(item.spec, sources.given, sources.environ))
            except InvalidValue as error:
                results[index] = _broken(Reason(code="option.value", field="option", hint=_in_one_line(error)))
                continue
            wanted[index] = (item.spec.probe, options)
            variables |= _secret_variables(item.spec, sources.environ)
    if wanted:
        request = Probe(
            functions=[function for function, _ in wanted.values()],
            host=host,
            seconds=_remaining(deadline),
            options=[options for _, options in wanted.values()],
            variables=variables,
        )
        replies = worker.ask(request, deadline)
        results |= zip(wanted, _probe_results(replies, len(wanted)), strict=True)
        patched = replies.patched
    probed = [
        item._replace(state=results[index].state, result=results[index]) if index in results else item
        for index, item in enumerate(loaded)
    ]
    return probed, patched


def _secret_variables(spec: PlatformSpec, environ: Mapping[str, str]) -> dict[str, str]:
    names = (option.variable for option in spec.options if option.variable and is_secret(option.variable))
    return {name: environ[name] for name in names if name in environ}


def _in_one_line(error: InvalidValue) -> str:
    return f"{error.message}: {error.remedy}" if error.remedy else error.message


def _probe_results(replies: Replies, count: int) -> Iterable[ProbeResult]:
    answers = {reply.index: reply for reply in replies.messages if isinstance(reply, Answer)}
    for index in range(count):
        answer = answers.get(index)
        if answer is None:
            yield _broken(replies.failure or Reason(code="plugin.noise", hint="its answer is missing"))
        elif answer.error:
            yield _broken(Reason(code="probe.raised", hint=answer.error))
        else:
            yield _decoded_probe(answer.value)


def _decoded_probe(value: msgspec.Raw) -> ProbeResult:
    try:
        result = msgspec.msgpack.decode(value, type=ProbeResult)
    except msgspec.MsgspecError as error:
        return _broken(Reason(code="probe.result", hint=str(error)))
    if result.state is ProbeState.PRESENT and not result.devices:
        return _broken(Reason(code="probe.result", hint="PRESENT without a device"))
    if result.state is not ProbeState.PRESENT and not result.reasons:
        return msgspec.structs.replace(result, reasons=(Reason(code="probe.no_reason", hint="it gave no reason"),))
    return result


def _broken(reason: Reason) -> ProbeResult:
    return ProbeResult(state=ProbeState.BROKEN, reasons=(reason,))


def _refused(entry: PluginEntry, state: ProbeState, reason: Reason) -> Inspected:
    return Inspected(entry, None, state, ProbeResult(state=state, reasons=(reason,)))


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
