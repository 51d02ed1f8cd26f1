"""The images: linted, not root, probed on /health, and made of folders that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inferplane.config.annotations import settings
from inferplane.config.environment import variable_of
from inferplane.plugins.variables import KNOWN
from inferplane.server.authentication import open_paths

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted((REPOSITORY / "docker").glob("*.Dockerfile"))
# Beside this interpreter: the environment need not be active.
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, rest) with continued lines joined and comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def last(path: Path, word: str) -> str:
    return [rest for name, rest in instructions(path) if name == word][-1]


def test_there_is_one_for_each_kind() -> None:
    assert [path.name for path in FILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_linter_has_nothing_to_say(path: Path) -> None:
    if HADOLINT is None:
        pytest.skip("hadolint is not installed (requirements-dev.txt)")
    done = subprocess.run([HADOLINT, "--no-color", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_server_is_not_root(path: Path) -> None:
    user, _, group = last(path, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    words = [name for name, _ in instructions(path)]
    assert words.index("USER") < words.index("ENTRYPOINT")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_probed_where_no_key_is_needed(path: Path) -> None:
    probe = last(path, "HEALTHCHECK")
    (route,) = set(re.findall(r"'(/[a-z]+)'", probe))
    from inferplane.config import ServerConfig

    assert route in open_paths(ServerConfig())  # type: ignore[call-arg]
    assert "--start-period" in probe
    assert "INFERPLANE_PORT" in probe


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_models_are_kept_in_a_volume(path: Path) -> None:
    volume = last(path, "VOLUME")
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:HF_HOME|INFERPLANE_CACHE)=(\S+)/", text) == [volume, volume]
    assert f"inferplane {volume}" in text, "the server's user owns it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_and_set_exists(path: Path) -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in [rest.split()[0] for name, rest in instructions(path) if name == "COPY" and "--from" not in rest]:
        assert (REPOSITORY / source / "pyproject.toml").is_file()
        assert f"!{source}" in ignored
    known = {*KNOWN, *(variable_of(name) for name in settings())}
    assert set(re.findall(r"INFERPLANE_[A-Z_]+", path.read_text(encoding="utf-8"))) <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_torch_is_the_one_that_is_tested(path: Path) -> None:
    (version,) = re.findall(r"^ARG TORCH=(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    constraints = (REPOSITORY / "constraints-dev.txt").read_text(encoding="utf-8")
    assert f"torch=={version}\n" in constraints
