"""The operations page states defaults, routes and files: they are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferplane.config import ServerConfig
from inferplane.config.annotations import settings
from inferplane.config.environment import variable_of
from inferplane.server.authentication import PROBES

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
LIMITS = re.findall(r"^\| `--([a-z-]+)` \| (\S+) \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("flag", "default"), LIMITS)
def test_defaults_are_the_ones_of_the_settings(flag: str, default: str) -> None:
    value = settings()[flag.replace("-", "_")].default
    assert default == ("–" if value is None else str(value))


def test_every_limit_of_time_and_size_is_listed() -> None:
    limits = {name for name in settings() if re.search(r"_timeout$|^max_(header|body|num_queued)_", name)}
    assert {flag.replace("-", "_") for flag, _ in LIMITS} == limits


def test_files_and_variables_exist() -> None:
    assert all((REPOSITORY / name).is_file() for name in re.findall(r"docker/[a-z]+\.Dockerfile", TEXT))
    assert set(re.findall(r"INFERPLANE_[A-Z_]+", TEXT)) <= {variable_of(name) for name in settings()}


def test_the_probes_are_the_ones_without_a_key() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| `GET /health`"))
    assert set(re.findall(r"(/[a-z]+)`", row)) == PROBES


def test_the_port_and_the_address() -> None:
    port, host = ServerConfig.model_fields["port"].default, ServerConfig.model_fields["host"].default
    assert f"listen on port {port}" in TEXT
    assert host == "127.0.0.1", "the page says loopback"
