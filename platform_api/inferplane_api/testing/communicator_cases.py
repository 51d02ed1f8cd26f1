"""Area "communicator": collectives of two processes, on the platform's own communicator or the backend it names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferplane_api.testing.case import Case, Lie, NotTested
from inferplane_api.testing.communicator_worker import NOTHING_DECLARED, Member

if TYPE_CHECKING:
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

WORLD = 2
ACCELERATOR_TIER = 5
TIMEOUT = 120.0


def cases(declarations: Declarations) -> list[Case]:
    """One case."""
    spec = declarations.spec
    if spec is None or declarations.plugin is not declarations.owner:
        return []
    claim = f"{spec.name} declares the communicator {spec.communicator!r}"
    name = spec.communicator or "own"
    return [Case(area="communicator", name=name, level="full", claim=claim, run=partial(_check, claim))]


def _check(claim: str, kit: Kit) -> None:
    probe = kit.declarations.probe
    first = kit.device
    devices = probe.devices if probe is not None else (first,)
    if kit.spec.tier == ACCELERATOR_TIER and first.memory_bytes and len(devices) < WORLD:
        raise NotTested("one device; two processes need two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(WORLD),
    }
    command = [sys.executable, "-m", "inferplane_api.testing.communicator_worker"]
    workers = []
    for rank in range(WORLD):
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "RANK": str(rank)},
        )
        workers.append(worker)
        member = Member(spec=kit.spec, device=devices[rank % len(devices)], rank=rank, world=WORLD)
        assert worker.stdin is not None
        worker.stdin.write(msgspec.json.encode(member))
        worker.stdin.close()
        worker.stdin = None
    _read(claim, workers)


def _read(claim: str, workers: list[subprocess.Popen[bytes]]) -> None:
    try:
        answers = [worker.communicate(timeout=TIMEOUT) for worker in workers]
    except subprocess.TimeoutExpired:
        raise Lie(f"{claim} but two processes hang in it") from None
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    for rank, (worker, (stdout, stderr)) in enumerate(zip(workers, answers, strict=True)):
        text = stdout.decode(errors="replace").strip()
        if worker.returncode or not text:
            lines = stderr.decode(errors="replace").strip().splitlines()
            raise Lie(f"{claim} but rank {rank} fails: {lines[-1] if lines else f'exit status {worker.returncode}'}")
        if text == NOTHING_DECLARED:
            raise NotTested("the platform declares no communicator and brings none")
        if text != "fine":
            raise Lie(f"{claim} but on rank {rank} {text}")
