"""A front end's end of the channel, in the asyncio and in the blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zmq
import zmq.asyncio

from inferplane.channel.codec import decode_from_engine, encode

if TYPE_CHECKING:
    from inferplane.channel.address import EngineAddress
    from inferplane.messages import FromEngine, ToEngine


def _configure(socket: zmq.Socket[Any], client_id: str | None) -> None:
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 0)
    if client_id is not None:
        socket.setsockopt(zmq.IDENTITY, client_id.encode())


class AsyncClientEnd:
    """For a front end on an event loop."""

    def __init__(self, address: EngineAddress, client_id: str, *, alive: bool = True) -> None:
        """alive: listen to liveness too."""
        self._context = zmq.asyncio.Context()
        self._data = self._context.socket(zmq.DEALER)
        _configure(self._data, client_id)
        self._data.connect(address.data)
        self._alive = self._context.socket(zmq.SUB)
        _configure(self._alive, None)
        if alive:
            self._alive.subscribe(b"")
            self._alive.connect(address.alive)

    def send(self, message: ToEngine) -> None:
        """Queue a message; never blocks, the queue is unbounded and the number of requests is bounded elsewhere."""
        self._data.send(encode(message), zmq.NOBLOCK)

    async def receive(self) -> FromEngine:
        """The next data message."""
        return decode_from_engine(await self._data.recv())

    async def receive_alive(self) -> FromEngine:
        """The next liveness message."""
        return decode_from_engine(await self._alive.recv())

    def close(self) -> None:
        """Close both sockets."""
        self._context.destroy(linger=0)


class BlockingClientEnd:
    """For a front end that waits."""

    def __init__(self, address: EngineAddress, client_id: str) -> None:
        self._context = zmq.Context()
        self._data = self._context.socket(zmq.DEALER)
        _configure(self._data, client_id)
        self._data.connect(address.data)

    def send(self, message: ToEngine) -> None:
        """Queue a message."""
        self._data.send(encode(message))

    def receive(self, timeout_seconds: float) -> FromEngine | None:
        """The next data message, or None when none came in time."""
        if not self._data.poll(int(timeout_seconds * 1000)):
            return None
        return decode_from_engine(self._data.recv())

    def close(self) -> None:
        """Close the socket."""
        self._context.destroy(linger=0)
