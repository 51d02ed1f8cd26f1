"""Between the responder of a start and the server that follows it, no connection is lost."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from inferplane.server.loading import LoadingResponder, StartupStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_CLIENTS = 3
PATIENCE = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def _ask(address: tuple[str, int]) -> str:
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: me\r\n\r\n")
        answer = client.recv(100)
    return answer.partition(b"\r\n")[0].decode()


@pytest.mark.parametrize("turn", range(10))
def test_who_connects_while_it_stops_is_answered_by_it_or_by_the_next(listener: socket.socket, turn: int) -> None:
    address = listener.getsockname()
    responder = LoadingResponder(listener, StartupStatus())
    answers: Counter[str] = Counter()
    enough = threading.Event()

    def ask_again_and_again() -> None:
        while not enough.is_set():
            answers[_ask(address)] += 1

    clients = [threading.Thread(target=ask_again_and_again) for _ in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    enough.wait(0.01 + 0.001 * turn)
    responder.stop()
    enough.set()
    listener.settimeout(0.01)
    while any(client.is_alive() for client in clients):
        with contextlib.suppress(TimeoutError):
            taken, _ = listener.accept()
            with taken:
                taken.recv(100)
                taken.sendall(b"the next\r\n")
    assert set(answers) <= {"HTTP/1.1 503 Service Unavailable", "the next"}
    assert sum(answers.values()) >= NUM_CLIENTS


def test_who_was_accepted_is_answered_after_the_stop(listener: socket.socket) -> None:
    responder = LoadingResponder(listener, StartupStatus())
    with socket.create_connection(listener.getsockname(), PATIENCE) as client:
        client.sendall(b"GET /health")
        assert _ask(listener.getsockname()).startswith("HTTP/1.1 503")  # the first one is accepted by now
        responder.stop()
        client.sendall(b" HTTP/1.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 503")


def test_who_finds_no_descriptor_free_is_answered_once_there_is_one(listener: socket.socket) -> None:
    for thread in threading.enumerate():
        if thread.name == "loading":
            thread.join(PATIENCE)  # an earlier test's, which would free descriptors meanwhile
    responder = LoadingResponder(listener, StartupStatus())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.settimeout(0.5)
        next_free = os.dup(0)
        os.close(next_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
        try:
            client.connect(listener.getsockname())
            client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            with pytest.raises(TimeoutError):
                client.recv(100)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.settimeout(PATIENCE)
        assert client.recv(100).startswith(b"HTTP/1.1 503")
    responder.stop()
