"""The engine's end of the channel: takes messages from any number of clients, answers each by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import zmq

from inferplane.channel.codec import decode_to_engine, encode
from inferplane.log import get_logger

if TYPE_CHECKING:
    from inferplane.channel.address import EngineAddress
    from inferplane.messages import FromEngine, ToEngine

log = get_logger(__name__)


class EngineEnd:
    """Used by the engine's main thread only."""

    def __init__(self, address: EngineAddress) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.bind(address.data)

    def receive(self, timeout_seconds: float) -> list[ToEngine]:
        """All that has arrived; waits at most so long for the first. A malformed message is logged, not raised."""
        messages: list[ToEngine] = []
        if not self._socket.poll(int(timeout_seconds * 1000)):
            return messages
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(decode_to_engine(b"".join(frames[1:])))
            except msgspec.DecodeError as error:
                log.error("dropped a malformed message: %s", error)

    def send(self, message: FromEngine) -> None:
        """To the client that the message names; a client that is gone is no error."""
        self._socket.send_multipart([message.client_id.encode(), encode(message)])

    def close(self) -> None:
        """Flush briefly and close."""
        self._socket.close()


class AlivePublisher:
    """Publishes liveness; used by one thread only, created in it."""

    def __init__(self, address: EngineAddress) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address.alive)

    def send(self, message: FromEngine) -> None:
        """To every front end."""
        self._socket.send(encode(message))

    def close(self) -> None:
        """Close at once."""
        self._socket.close()
