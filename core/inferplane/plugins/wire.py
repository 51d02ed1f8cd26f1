"""The messages between the launcher and a discovery child, and their frames; knows nothing about processes.

A frame is a 4-byte little-endian length and that many bytes of MessagePack.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from inferplane_api.spec import HostInfo

HEADER = struct.Struct("<I")
MAX_FRAME = 64 << 20
"""Bytes; a longer frame is noise."""


class EntryRef(msgspec.Struct, frozen=True):
    """What a child is told about an entry point."""

    group: str
    name: str
    value: str


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Import these descriptors, each by itself. Answered by a Loaded for each, then Done."""

    entries: list[EntryRef]
    seconds: float
    """After which the child ends itself, so that a hung one never outlives its launcher."""


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Run probes of loaded platforms. Answered by an Answer for each, then Done."""

    functions: list[str]
    host: HostInfo
    seconds: float
    options: list[dict[str, str | int | float | bool]] = []
    """For each function, the values of its platform's options."""
    variables: dict[str, str] = {}
    """Secret variables that these platforms declare, which the child's environment lacks."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call "module:function" with one argument, check the result's type. Answered by an Answer, then Done."""

    function: str
    argument: msgspec.Raw
    kind: str
    """A key of `child.CALLS`."""
    seconds: float


class Hook(msgspec.Struct, frozen=True, tag="hook"):
    """Call a hook of one `inferplane.plugins` entry. Answered by an Answer with its findings, then Done."""

    entry: EntryRef
    hook: str
    arguments: msgspec.Raw
    seconds: float


Request = Load | Probe | Call | Hook


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """One descriptor: its data, or why there is none."""

    index: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What one function gave, or the exception it raised."""

    index: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end of the answers to one request."""

    patched: tuple[str, ...] = ()
    """Names of the core and of the contract that the plugin rebound meanwhile."""


Reply = Loaded | Answer | Done

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Any) -> bytes:
    """The message as MessagePack, without its frame."""
    return _ENCODER.encode(message)


def frame(message: Any) -> bytes:
    """The message with its length in front."""
    body = _ENCODER.encode(message)
    return HEADER.pack(len(body)) + body
