"""The process that imports one distribution's descriptors and runs its probes, started by `child_process.py`.

Knows one distribution at a time and decides nothing. Every exception of a plugin is an answer. What a plugin prints
to stdout goes to stderr, since answers travel on a private copy of the descriptor; stdin is private likewise. A request
that takes too long ends the process by an alarm, even inside C code, so none outlives its launcher.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from inferplane.plugins.tamper import Watch
from inferplane.plugins.wire import (
    HEADER,
    Answer,
    Call,
    Done,
    EntryRef,
    Hook,
    Load,
    Loaded,
    Probe,
    Reply,
    Request,
    encode,
    frame,
)
from inferplane_api.internal.loading import find
from inferplane_api.model import ModelSpec
from inferplane_api.spec import GROUPS, AttentionRequest, KernelRequest, ProbeResult, Verdict

Emit = Callable[[Reply], None]

CALLS: dict[str, tuple[Any, type]] = {
    "attention": (AttentionRequest, Verdict),
    "kernel": (KernelRequest, Verdict),
    "describe": (dict[str, Any], ModelSpec),
}
"""Kind of call to the types of its argument and of its result."""

HOOKS = "inferplane.plugins"


class Answerer:
    """Answers requests about one distribution, in whatever process it lives."""

    def __init__(self, *, guarded: bool = False) -> None:
        """guarded=True: tell which names of the core the distribution's code rebinds in this process."""
        self._watch = Watch() if guarded else None
        self._modules: set[str] = set()

    def answer(self, request: Request, emit: Emit) -> None:
        """Emit the replies to one request, the last of which is Done."""
        if isinstance(request, Load):
            self._load(request, emit)
        elif isinstance(request, Probe):
            self._probe(request, emit)
        elif isinstance(request, Call):
            argument, result = CALLS[request.kind]
            value = msgspec.msgpack.decode(request.argument, type=argument)
            _emit_call(0, lambda: checked(find(request.function)(value), result), emit)
        else:
            _emit_call(0, lambda: call_hook(request), emit)
        emit(Done(self._patched()))

    def _patched(self) -> tuple[str, ...]:
        return tuple(change.name for change in self._watch.changes(self._modules)) if self._watch is not None else ()

    def _load(self, request: Load, emit: Emit) -> None:
        for index, entry in enumerate(request.entries):
            self._modules.add(entry.value.partition(":")[0].partition(".")[0])
            try:
                value = msgspec.Raw(encode(load_descriptor(entry)))
            except BaseException as error:
                emit(Loaded(index, error=describe_exception(error)))
            else:
                emit(Loaded(index, value))

    def _probe(self, request: Probe, emit: Emit) -> None:
        os.environ.update(request.variables)
        for index, function in enumerate(request.functions):
            options = request.options[index] if request.options else {}
            host = msgspec.structs.replace(request.host, options=options)
            _emit_call(index, lambda name=function, host=host: checked(find(name)(host), ProbeResult), emit)  # type: ignore[misc]


def load_descriptor(entry: EntryRef) -> object:
    """Import the value of an entry point; TypeError when it is not the descriptor that the group asks for."""
    value = find(entry.value)
    if entry.group == HOOKS:
        return {"name": entry.name, "load": entry.value, "hooks": implemented_hooks(value, entry.name)}
    return checked(value, GROUPS[entry.group])


def checked(value: object, expected: type) -> object:
    """The value when it is an instance of the expected type; TypeError otherwise."""
    if not isinstance(value, expected):
        raise TypeError(f"expected {expected.__name__}, got {type(value).__name__}")
    return value


def implemented_hooks(plugin: object, name: str) -> list[str]:
    """Names of the hooks that a plugin implements. Raises pluggy's error for a hook that does not exist."""
    manager = _manager(plugin, name)
    return sorted(caller.name for caller in manager.get_hookcallers(plugin) or ())


def _manager(plugin: object, name: str) -> Any:
    """A manager of this plugin alone: its hooks are called by themselves."""
    import pluggy

    from inferplane_api import hooks

    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin, name)
    manager.check_pending()
    return manager


def call_hook(request: Hook) -> object:
    """Call one hook of one plugin; a list of findings, empty when it does not implement it."""
    from inferplane_api import hooks

    manager = _manager(find(request.entry.value), request.entry.name)
    arguments: dict[str, Any] = msgspec.msgpack.decode(request.arguments)
    if "host" in arguments:
        arguments["host"] = msgspec.convert(arguments["host"], type=_host_type())
    answers = getattr(manager.hook, request.hook)(**arguments)
    return [checked(finding, hooks.Finding) for answer in answers for finding in answer or ()]


def describe_exception(error: BaseException) -> str:
    """The traceback's last line, with the place where the exception was raised."""
    text = " ".join(str(error).split())
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or "importlib" in trace.tb_frame.f_code.co_filename:
        return text
    if trace.tb_frame.f_globals is globals() or trace.tb_frame.f_globals is find.__globals__:
        return text
    return f"{text} ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def _host_type() -> Any:
    from inferplane_api.spec import HostInfo

    return HostInfo


def _emit_call(index: int, function: Callable[[], object], emit: Emit) -> None:
    try:
        value = msgspec.Raw(encode(function()))
    except BaseException as error:
        emit(Answer(index, error=describe_exception(error)))
    else:
        emit(Answer(index, value))


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer framed requests until the launcher closes its end."""
    decoder = msgspec.msgpack.Decoder(Request)
    answerer = Answerer(guarded=True)

    def emit(reply: Reply) -> None:
        replies.write(frame(reply))
        replies.flush()

    while len(header := requests.read(HEADER.size)) == HEADER.size:
        request = decoder.decode(requests.read(HEADER.unpack(header)[0]))
        if hasattr(signal, "alarm"):
            signal.alarm(math.ceil(request.seconds) + 1)
        answerer.answer(request, emit)
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def main() -> None:
    """Make stdin and stdout private, then serve."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    serve(requests, replies)
    # A thread or an exit handler that a plugin left behind must not keep the child alive.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
