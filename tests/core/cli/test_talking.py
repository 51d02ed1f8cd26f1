"""`inferplane chat` and `complete` as a shell and a person use them, against a scripted answer."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.cli import chat
from inferplane.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator


class Handler(BaseHTTPRequestHandler):
    bodies: list[dict[str, Any]]
    keys: list[str | None]
    status = 200
    chunk: dict[str, Any] | None = None

    def do_GET(self) -> None:
        self.answer(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        self.keys.append(self.headers["authorization"])
        if self.status != 200:
            self.answer(self.status, b'{"error": {"message": "because"}}')
            return
        said = f"<{body['messages'][-1]['content'] if 'messages' in body else body['prompt']}>"
        pieces = [{"role": "assistant"}, {"content": said[:2]}, {"content": said[2:]}, {}]
        chunks = [{"choices": [{"delta": piece, "text": piece.get("content", "")}]} for piece in pieces]
        chunks.append(self.chunk or {"choices": [], "usage": {}})
        self.answer(200, b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks))

    def answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    handler = type("One", (Handler,), {"bodies": [], "keys": []})
    http = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    handler.url = f"http://127.0.0.1:{http.server_port}/v1"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield handler
    http.shutdown()
    thread.join()
    http.server_close()


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_one_message(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--system-prompt",
        "be brief",
        "--temperature",
        "0.5",
        "--top-p",
        "0.9",
        "--seed",
        "3",
        "--max-tokens",
        "7",
    ]
    assert main(["chat", "--url", server.url, "-q", "hello", *flags]) == 0
    assert capsys.readouterr().out == "<hello>\n"
    (body,) = server.bodies
    assert body.pop("messages") == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert body == {"model": "m", "stream": True, "temperature": 0.5, "top_p": 0.9, "seed": 3, "max_tokens": 7}


def test_a_piped_conversation_is_kept(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "one\n\ntwo\n")
    assert main(["chat", "--url", server.url + "/"]) == 0
    assert capsys.readouterr().out == "<one>\n<two>\n"
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["one", "<one>", "two"]


def test_completions_of_lines_and_of_everything(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "a b\nc\n")
    assert main(["complete", "--url", server.url, "--model-name", "other"]) == 0
    say(monkeypatch, "a\nb\n")
    assert main(["complete", "--url", server.url, "-q", "-"]) == 0
    assert capsys.readouterr().out == "<a b>\n<c>\n<a\nb\n>\n"
    assert [body["model"] for body in server.bodies] == ["other", "other", "m"]


def test_the_key_of_the_environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "env")
    main(["chat", "--url", server.url, "-q", "x"])
    main(["chat", "--url", server.url, "-q", "x", "--api-key", "flag"])
    assert server.keys == ["Bearer env", "Bearer flag"]


def test_refusals_end_a_script_with_the_reason(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.status = 401
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    error = capsys.readouterr().err
    assert "401: because" in error
    assert "--api-key" in error


def test_an_error_in_the_stream(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.chunk = {"error": {"message": "the engine has stopped"}}
    assert main(["complete", "--url", server.url, "-q", "x"]) == 1
    assert "the engine has stopped" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "nonsense", "http://[::1"])
def test_no_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", url, "-q", "x"]) == 1
    assert "--url" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_stops_an_answer_and_meets_an_error_and_goes_on(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = iter(["stop me", "fail", "again"])

    def read(prompt: str) -> str:
        try:
            return next(turns)
        except StopIteration:
            raise EOFError from None

    real = chat.Remote.chat

    def answer(self: Any, messages: list[dict[str, str]]) -> Iterator[str]:
        server.status = 500 if messages[-1]["content"] == "fail" else 200
        for piece in real(self, messages):
            yield piece
            if messages[-1]["content"] == "stop me" and piece:
                raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(chat.Remote, "chat", answer)
    assert main(["chat", "--url", server.url]) == 0
    out = capsys.readouterr()
    assert "(stopped)" in out.out
    assert "500: because" in out.err
    # The failed turn is forgotten; what the person saw of the stopped one is not.
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["stop me", "<s", "again"]


def test_an_interrupted_script_has_the_shells_status(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: Any, messages: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat.Remote, "chat", answer)
    assert main(["chat", "--url", server.url, "-q", "x"]) == 130
