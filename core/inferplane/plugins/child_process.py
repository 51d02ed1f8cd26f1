"""How a process that runs plugin code is started and ended: its command, its environment, its process group.

A child sees the launcher's distributions and nothing of its secrets. Knows no protocol and no plugin.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from inferplane.config.secrets import is_secret

_STDERR_TAIL = 4096

_START = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; from {module} import main; main()"
"""Not `-m`, which puts the working folder in front of the path, and PYTHONSAFEPATH is unknown to Python 3.10. With `-c`
that entry is "", added after the site is set up, and gone before anything but `sys` is imported; the path of the
environment holds no such entry. `-I` would leave out the user's own site folder, where plugins may be."""


def child_command(module: str) -> list[str]:
    """The command that runs `main()` of a module of core, with nothing from the working folder."""
    return [sys.executable, "-c", _START.format(module=module)]


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The launcher's environment without what is named like a secret, and its import path, so that both see the same.

    A secret variable that a platform declares as an option's reaches its probe with the request (`wire.Probe`).
    """
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    kept = {name: value for name, value in (os.environ if environ is None else environ).items() if not is_secret(name)}
    return {**kept, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def start_child(module: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start it with pipes for stdin and stdout, at the head of a process group of its own. Raises OSError.

    `stderr` is a file, not a pipe: a plugin that logs without end must not block on us, and what it left running must
    not keep us waiting for an end of file.
    """
    return subprocess.Popen(
        child_command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=child_environment(),
        start_new_session=True,
    )


def end_child(process: subprocess.Popen[Any]) -> int:
    """Kill a child with everything it started, which may outlive a child that ended by itself; its exit status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def describe_exit(status: int, last_words: str) -> str:
    """ "exit status 3, its last line on stderr: no firmware", or which signal."""
    how = f"killed by {_signal_name(-status)}" if status < 0 else f"exit status {status}"
    return f"{how}, its last line on stderr: {last_words}" if last_words else how


def last_line(stderr: IO[bytes]) -> str:
    """The last line of a child's stderr; "" when it said nothing."""
    stderr.seek(max(os.fstat(stderr.fileno()).st_size - _STDERR_TAIL, 0))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


class Finished(NamedTuple):
    """The end of a child that was asked one thing."""

    status: int
    stdout: bytes
    last_line: str


def run_child(module: str, request: bytes, timeout: float) -> Finished:
    """Give a child its request and wait for its end; nothing that it started outlives the call.

    Raises subprocess.TimeoutExpired after `timeout` seconds, with the child and its group killed.
    """
    with tempfile.TemporaryFile() as stderr:
        process = start_child(module, stderr)
        try:
            stdout, _ = process.communicate(request, timeout)
        finally:
            status = process.poll()
            killed = end_child(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        return Finished(killed if status is None else status, stdout, last_line(stderr))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
