"""Output into a pipe that nobody reads any more ends a command in silence, as it ends any Unix tool."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplane.cli import main as cli
from inferplane.cli.main import EXIT_BROKEN_PIPE, main

COMMANDS = [["--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["doctor"], ["explain", "--help"]]


@pytest.fixture
def nobody_reads() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """run(*arguments, buffered=...) with stdout a pipe whose reader is gone."""

    def run(*arguments: str, buffered: bool = True) -> subprocess.CompletedProcess[bytes]:
        reader, writer = os.pipe()
        os.close(reader)
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        if not buffered:
            environ["PYTHONUNBUFFERED"] = "1"
        command = [sys.executable, "-m", "inferplane", *arguments]
        try:
            return subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environ, timeout=60, check=False)
        finally:
            os.close(writer)

    return run


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_ends_in_silence(arguments: list[str], nobody_reads: Any) -> None:
    done = nobody_reads(*arguments)
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, b"")


def test_unbuffered_output_too(nobody_reads: Any) -> None:
    done = nobody_reads("plugins", buffered=False)
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, b"")


def test_explain_too(nobody_reads: Any, tiny_llama_dir: Path) -> None:
    done = nobody_reads("explain", "--model", str(tiny_llama_dir), "--platform", "reference", "--json")
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, b"")


def test_another_broken_pipe_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that the other side closed is a failure, and not the end of the output."""

    def run(argv: list[str] | None) -> int:
        near, far = socket.socketpair()
        far.close()
        with near:
            near.sendall(b"x")
        return 0

    monkeypatch.setattr(cli, "_run", run)
    with pytest.raises(BrokenPipeError):
        main([])
