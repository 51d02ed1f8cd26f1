"""A batch file in, a batch file out: OpenAI's format, the server's own answers, one order."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from inferplane.batch.answering import answer_all
from inferplane.batch.records import BadLine, parse_line
from inferplane.cli.main import main
from inferplane_scripted.checkpoint import write_checkpoint


def request(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def lines(*entries: Any) -> bytes:
    return b"".join((entry if isinstance(entry, bytes) else json.dumps(entry).encode()) + b"\n" for entry in entries)


@pytest.mark.parametrize(
    ("line", "custom_id", "code"),
    [
        (b"{", None, "invalid_json"),
        (b"\xff", None, "invalid_json"),
        (b"[" * 100_000, None, "invalid_json"),
        (b"[]", None, "invalid_line"),
        (b"{}", None, "missing_custom_id"),
        (b'{"custom_id": "a", "url": "/v1/models", "body": {}}', "a", "invalid_url"),
        (b'{"custom_id": "a", "url": ["x"], "body": {}}', "a", "invalid_url"),
        (b'{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}', "a", "invalid_method"),
        (b'{"custom_id": "a", "url": "/v1/completions", "body": []}', "a", "invalid_body"),
        (b'{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}', "a", "invalid_body"),
    ],
)
def test_lines_that_ask_for_nothing(line: bytes, custom_id: str | None, code: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(line)
    assert (caught.value.custom_id, caught.value.code) == (custom_id, code)


class App:
    """An ASGI application that answers late requests first, and counts how many run."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.running = self.most = 0
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        self.asked.append(dict(scope["headers"])[b"x-request-id"].decode())
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(self.total - body["number"]):
            await asyncio.sleep(0)
        self.running -= 1
        await send({"type": "http.response.start", "status": body.get("status", 200), "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"id": f"r{body['number']}"}).encode()})


async def test_answers_keep_the_order_and_the_bound() -> None:
    app, output = App(40), io.BytesIO()
    source = lines(*(request(f"c{number}", number=number, status=400 if number == 7 else 200) for number in range(40)))
    counts = await answer_all(app, iter(source.splitlines(keepends=True)), output, at_once=5)
    assert counts == (40, 1)
    assert app.most == 5
    answers = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"c{number}" for number in range(40)]
    ids = [answer["response"]["request_id"] for answer in answers]
    assert sorted(ids) == sorted(app.asked), "a failed request can be found in the log as well"
    assert len(set(ids)) == 40
    assert [answer["response"]["body"]["id"] for answer in answers] == [f"r{number}" for number in range(40)]
    assert answers[7]["response"]["status_code"] == 400
    assert all(answer["error"] is None for answer in answers)
    assert len({answer["id"] for answer in answers}) == 40


async def test_the_end_of_the_engine_ends_the_batch_and_leaves_no_task() -> None:
    output = io.BytesIO()

    def check() -> None:
        if output.tell():
            raise RuntimeError("the engine is gone")

    source = lines(*(request(f"c{number}", number=number) for number in range(9)))
    with pytest.raises(RuntimeError, match="gone"):
        await answer_all(App(9), iter(source.splitlines()), output, at_once=2, check=check)
    assert len(output.getvalue().splitlines()) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("batch")
    path = write_checkpoint(folder / "model", max_position=128)
    script = folder / "script.json"
    script.write_text(json.dumps({"default": list(b"yes")}))
    options = ["--platform", "scripted", "--platform-option", f"script={script}", "--served-model-name", "tiny"]
    return [str(path), *options, "--log-level", "error"]


def test_the_command(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(
        lines(
            request("text", model="tiny", prompt="Hi", max_tokens=3),
            b"",
            request(
                "chat", "/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3
            ),
            request("bad", model="tiny", prompt="Hi", temperature=-1),
            b"no json",
        )
    )
    # A key of the environment is for clients of a server; nobody knocks here.
    status = main(["run-batch", *model, "--api-key", "secret", "-i", str(source), "-o", str(target)])
    text, chat, bad, broken = (json.loads(line) for line in target.read_text().splitlines())
    assert text.keys() == {"id", "custom_id", "response", "error"}
    assert text["response"]["status_code"] == 200
    assert text["response"]["body"]["choices"][0]["text"] == "yes"
    assert text["response"]["body"]["usage"]["completion_tokens"] == 3
    assert chat["response"]["body"]["choices"][0]["message"]["content"] == "yes"
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert (broken["response"], broken["error"]["code"], broken["custom_id"]) == (None, "invalid_json", None)
    assert status == 1
    assert capsys.readouterr().err.splitlines()[-1] == "4 requests answered, 2 of them with an error"


@pytest.mark.parametrize(("flag", "field"), [("-i", "input_file"), ("-o", "output_file")])
def test_a_file_that_cannot_be_opened_is_told_before_the_engine_starts(
    model: list[str], tmp_path: Path, flag: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text("")
    files = {"-i": str(good), "-o": str(tmp_path / "out"), flag: str(tmp_path / "none" / "x")}
    assert main(["run-batch", *model, *(word for pair in files.items() for word in pair)]) == 1
    assert field in capsys.readouterr().err
