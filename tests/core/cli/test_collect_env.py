"""What a bug report gets: facts, and no secret."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from inferplane.cli.main import main
from inferplane.plugins.inventory import list_entry_points


def test_facts_without_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("INFERPLANE_API_KEY", "hush1")
    monkeypatch.setenv("HF_TOKEN", "hush2")
    monkeypatch.setenv("HF_ENDPOINT", "https://user:hush3@hub.example/x")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("UNRELATED_NAME", "hush4")
    assert main(["collect-env", "--json"]) == 0
    text = capsys.readouterr().out
    facts = json.loads(text)
    assert "hush" not in text
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"
    assert facts["variables"]["HF_ENDPOINT"] == "https://hub.example/x"
    assert facts["variables"]["HF_TOKEN"]
    assert facts["packages"]["torch"] not in ("", "not installed")
    assert set(facts["plugins"]) == {f"{entry.kind}:{entry.name}" for entry in list_entry_points()}
    assert facts["host"]["cpu_count"] >= 1


def test_a_table_of_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("INFERPLANE_API_KEY", "hush")
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    assert all(title in text for title in ("System", "Packages", "Plugins", "Host", "Variables"))
    assert "hush" not in text


def test_neither_torch_nor_a_plugin_is_imported() -> None:
    code = "import sys; from inferplane.cli.main import main; main(['collect-env']); "
    code += "print([name for name in sys.modules if name in ('torch', 'inferplane_cpu', 'fastapi')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
