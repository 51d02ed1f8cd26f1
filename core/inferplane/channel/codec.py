"""Messages to bytes and back: MessagePack of typed structs, never pickle."""

from __future__ import annotations

import msgspec

from inferplane.messages import FromEngine, ToEngine

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """One message."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _from_engine.decode(data)
