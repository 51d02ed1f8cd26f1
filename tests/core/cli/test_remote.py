"""The client behind `inferplane chat` and `complete`, against a server on loopback that says what the test wants."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from inferplane.cli.remote import Remote
from inferplane.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "one\u2028two\u0085three"


class _Handler(BaseHTTPRequestHandler):
    models: bytes = b""

    def do_GET(self) -> None:
        self._answer(self.models)

    def do_POST(self) -> None:
        chunk = json.dumps({"choices": [{"text": TEXT}]}, ensure_ascii=False).encode()
        self._answer(b"data: " + chunk + b"\n\ndata: [DONE]\n\n")

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Handler, "models", json.dumps({"data": [{"id": "m"}]}).encode())
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def remote(url: str) -> Remote:
    names = ("api_key", "max_tokens", "temperature", "top_p", "seed", "model_name")
    return Remote(Namespace(url=url, **dict.fromkeys(names)))


def test_separators_inside_an_answer_do_not_cut_it(url: str) -> None:
    assert "".join(remote(url).complete("x")) == TEXT


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"data": []}'])
def test_another_server_is_an_error_with_a_remedy(url: str, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "models", answer)
    with pytest.raises(InferplaneError, match="does not list models") as caught:
        remote(url)
    assert "--url" in caught.value.remedy
