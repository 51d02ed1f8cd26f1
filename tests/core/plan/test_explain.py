"""`inferplane explain` on a tiny hybrid checkpoint, from its config alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplane.cli.main import main


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """explain(*arguments) on the built-in reference platform, whatever else is installed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("INFERPLANE_PLUGINS", "inferplane")
        status = main(["explain", "--platform", "reference", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_json_is_the_record_of_the_plan(explain: Callable[..., Any], tiny_gemma3_dir: Path) -> None:
    status, out, _ = explain("--model", str(tiny_gemma3_dir), "--json", "--max-model-len", "128")
    record = json.loads(out)
    assert status == 0
    config = json.loads((tiny_gemma3_dir / "config.json").read_text())
    sliding = config["layer_types"].count("sliding_attention")
    assert [(group["kind"], len(group["layers"])) for group in record["geometry"]["groups"]] == [
        ("sliding", sliding),
        ("full", len(config["layer_types"]) - sliding),
    ]
    decisions = {decision["subject"]: decision for decision in record["decisions"]}
    assert decisions["platform"]["chosen"] == "reference"
    assert decisions["platform"]["source"] == "user"
    assert decisions[f"attention sliding({config['sliding_window']}) x{sliding}"]["chosen"] == "reference.paged"
    assert decisions["config model.max_model_len"] == {
        "subject": "config model.max_model_len",
        "chosen": "128",
        "score": None,
        "source": "user",
        "reason": "",
        "losers": [],
    }


def test_text_names_every_choice(explain: Callable[..., Any], tiny_gemma3_dir: Path) -> None:
    status, out, _ = explain("--model", str(tiny_gemma3_dir))
    assert status == 0
    assert out.startswith("platform reference (inferplane 0.1.0")
    for subject in ("platform", "dtype", "kv dtype", "attention full x1", "pages", "linear dense"):
        assert any(line.startswith(subject) for line in out.splitlines())


def test_no_weights_are_read(explain: Callable[..., Any], tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "emptied"
    folder.mkdir()
    for file in tiny_checkpoint("llama").iterdir():
        (folder / file.name).write_bytes(b"not weights" if file.suffix == ".safetensors" else file.read_bytes())
    status, out, _ = explain("--model", str(folder))
    assert status == 0
    assert "LlamaForCausalLM" in out


def test_it_refuses_where_a_start_would(explain: Callable[..., Any], tiny_llama_dir: Path) -> None:
    status, _, err = explain("--model", str(tiny_llama_dir), "--attention-backend", "reference.page")
    assert status == 1
    assert "no such attention backend; installed: reference.paged" in err
    assert "did you mean 'reference.paged'?" in err
