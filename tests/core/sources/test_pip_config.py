"""Pip's configuration read as pip reads it: compared with pip itself where it can say."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from inferplane.errors import InferplaneError
from inferplane.sources.pip_config import DEFAULT_INDEX, config_files, read_pip_config

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults() -> None:
    config = read_pip_config({}, [])

    assert config.indexes == (DEFAULT_INDEX,)
    assert config.find_links == ()


def test_later_files_and_then_variables_win(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("[global]\nindex-url = https://a/simple\nfind_links = /x /y\ncert = /c\n")
    second.write_text(
        "[global]\nindex-url = https://b/simple\n[download]\nextra-index-url =\n  https://e\n  https://f\n"
    )

    config = read_pip_config({"PIP_FIND_LINKS": "/z"}, [first, second])

    assert config.indexes == ("https://b/simple", "https://e", "https://f")
    assert config.find_links == ("/z",)
    assert config.cert == "/c"


def test_no_index() -> None:
    assert read_pip_config({"PIP_NO_INDEX": "true", "PIP_INDEX_URL": "https://a"}, []).indexes == ()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("no section\n")

    with pytest.raises(InferplaneError, match=r"pip\.conf"):
        read_pip_config({}, [file])


@pytest.mark.skipif(sys.platform == "win32", reason="the fake home has POSIX paths")
def test_files_and_values_are_those_of_pip(tmp_path: Path) -> None:
    for folder, index in ((".pip", "old"), (".config/pip", "new")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pip.conf").write_text(f"[global]\nindex-url = https://{index}/simple\n")
    system = tmp_path / "etc"
    (system / "pip").mkdir(parents=True)
    (system / "pip" / "pip.conf").write_text("[global]\nfind-links = /links\nindex-url = https://system/simple\n")
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(system), "PATH": os.environ["PATH"]}

    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=environ, capture_output=True, text=True, check=False
    )
    if said.returncode:
        pytest.skip("no pip in this environment")
    config = read_pip_config(environ)

    assert "global.index-url='https://new/simple'" in said.stdout
    assert "global.find-links='/links'" in said.stdout
    assert config.indexes[0] == "https://new/simple"
    assert config.find_links == ("/links",)


def test_no_files_when_pip_is_told_to_read_none() -> None:
    assert config_files({"PIP_CONFIG_FILE": os.devnull}) == []
