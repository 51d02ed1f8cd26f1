"""How long a start takes, told by a real server that computes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from inferplane.bench.startup import Start, one_start, summarize_starts
from inferplane.cli.main import main
from inferplane.errors import InferplaneError
from inferplane_scripted.checkpoint import write_checkpoint


def test_figures_of_several_starts() -> None:
    starts = [
        Start(4.0, 5.0, [("source", 1.0)]),
        Start(2.0, 2.5, [("source", 0.5)]),
        Start(3.0, 3.5, [("source", 0.5)]),
    ]
    result = summarize_starts(starts)
    assert (result["first_time_to_ready"], result["median_time_to_ready"], result["min_time_to_ready"]) == (4, 3, 2)
    assert result["mean_time_to_first_token"] == pytest.approx(11 / 3)
    assert result["median_phases"] == {"source": 0.5}


def test_a_server_that_ends_is_an_error() -> None:
    with pytest.raises(InferplaneError, match="status 3"):
        one_start([sys.executable, "-c", "import sys; print('Ready: not quite'); sys.exit(3)"], None, 30.0)


def test_a_server_that_is_never_ready_is_ended() -> None:
    with pytest.raises(InferplaneError, match="before it was ready"):
        one_start([sys.executable, "-c", "import time; time.sleep(600)"], None, 0.3)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_checkpoint(tmp_path / "model", max_position=128)
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": [65, 66]}))
    flags = ["--platform", "scripted", "--platform-option", f"script={script}", "--api-key", "secret"]
    result = tmp_path / "r.json"
    assert main(["bench", "startup", str(model), *flags, "--num-iters", "1", "--output-json", str(result)]) == 0
    found = json.loads(result.read_text())
    assert 0 < found["first_time_to_ready"] < found["first_time_to_first_token"]
    assert {"source", "plan"} <= found["median_phases"].keys()
    assert "secret" not in result.read_text() + capsys.readouterr().out
