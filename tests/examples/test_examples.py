"""The examples run as they are printed in the documentation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]


def run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of the default model's server, as its ready line gives it."""
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    command = [sys.executable, "-m", "inferplane", "serve", "--port", "0"]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=dict(os.environ))
    try:
        address = None
        for line in process.stdout:
            if found := re.search(r"Ready: .* on (http://\S+/v1)", line):
                address = found[1]
                break
        assert address, log.read_text()
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        process.wait(timeout=60)


def test_every_example_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in source for path in EXAMPLES.glob("*.py"))


def test_offline_generate(smollm2_path: Path) -> None:
    text = run_example("offline_generate.py")
    assert "'The capital of France is' -> ' Paris" in text
    assert len(text.strip().splitlines()) == 3


def test_chat_stream(server: str) -> None:
    text = run_example("chat_stream.py", "What is the capital of Japan? Answer with one word.", server)
    assert "Tokyo" in text


def readme_block(containing: str) -> str:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if containing in code)


def test_the_readme_without_a_server(smollm2_path: Path) -> None:
    command = [sys.executable, "-c", readme_block("LLM(")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(" Paris")
    assert len(answer.stdout.strip().splitlines()) >= 2


def test_the_readme_with_the_official_client(server: str) -> None:
    code = readme_block("OpenAI(").replace("http://127.0.0.1:8000/v1", server)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "Tokyo" in answer.stdout


def test_the_terminal_client(server: str) -> None:
    command = [sys.executable, "-m", "inferplane", "complete", "--url", server, "--max-tokens", "8"]
    command += ["--temperature", "0", "-q", "The capital of France is"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
