"""benchmarks/cpu: its protocol with a stand-in engine in a real process, its medians, ratios and verdicts by hand."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cpu"

STAND_IN = """
import math, os, sys
class Engine:
    def load(self, settings):
        print("chatter on stdout that is no reply")
        return {"versions": {"stand-in": "1"}, "notes": [settings["model"]]}
    def prepare(self, requests, shared):
        def run():
            if requests[0][0][0] == 13:
                raise ValueError("thirteen")
            if requests[0][0][0] == 14:
                return [[]]
            if requests[0][0][0] == 15:
                os._exit(3)
            return [[ids[-1]] * count for ids, count in requests]
        return run
    def score(self, text):
        return [math.log(2)] * len(text)
"""


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripts' own modules, gone from the interpreter afterwards."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))

    class Modules:
        def __getattr__(self, name: str) -> Any:
            return __import__(name)

    yield Modules()
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """child.py beside an `adapters` package with one stand-in engine."""
    shutil.copy(FOLDER / "child.py", tmp_path)
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "stand_in.py").write_text(STAND_IN)
    return [sys.executable, str(tmp_path / "child.py"), "stand_in"]


def test_an_engine_is_driven_through_its_process(cpu: Any, command: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with cpu.session.Session(command, log=log) as session:
        assert session.load({"model": "m"}) == {"versions": {"stand-in": "1"}, "notes": ["m"]}
        seconds, outputs = session.generate([([1, 2], 3), ([4], 1)])
        assert outputs == [[2, 2, 2], [4]]
        assert seconds >= 0
        assert session.score("abc") == pytest.approx([0.693] * 3, rel=1e-3)
        assert session.peak_memory() > 1
        with pytest.raises(cpu.session.SessionFailed, match="thirteen"):
            session.generate([([13], 1)])
        with pytest.raises(cpu.session.SessionFailed, match="made"):
            session.generate([([14], 1)])
        with pytest.raises(cpu.session.SessionFailed, match="status 3"):
            session.generate([([15], 1)])
    assert "chatter" in log.read_text()


def test_the_work_is_the_same_for_all_and_new_every_time(cpu: Any) -> None:
    work = cpu.work
    mixed = work.mixed(64)
    assert mixed == work.mixed(64)
    assert (sum(len(ids) for ids, _ in mixed), work.output_tokens(mixed)) == (10938, 6253)
    shared = work.prefixed(work.FULL, 0)
    assert {tuple(ids[:512]) for ids, _ in shared} == {tuple(shared[0][0][:512])}
    assert len({tuple(ids) for ids, _ in shared}) == 32
    assert work.prompt("ttft", 16, 0, 0) != work.prompt("ttft", 16, 1, 0) != work.prompt("ttft", 16, 0, 1)


def test_decode_leaves_the_first_token_out(cpu: Any) -> None:
    class Clocked:
        def generate(self, requests: Any, shared: int = 0) -> Any:
            ((_, count),) = requests
            return 0.5 + 0.01 * (count - 1), [[0] * count]

    measured = cpu.rows.decode_rate(Clocked(), cpu.work.FULL, 0)
    assert measured.values == pytest.approx([100.0] * 3)


def record(row: str, peer: str, *rounds: list[float]) -> list[dict[str, Any]]:
    return [{"round": i, "row": row, "peer": peer, "values": values, "detail": {}} for i, values in enumerate(rounds)]


def test_medians_are_of_rounds_and_ratios_say_how_much_better_ours_is(cpu: Any) -> None:
    rows = cpu.rows
    records = [
        *record("decode", "ours", [90, 110, 500], [100, 130, 120], [1, 2, 3]),
        *record("decode", "llama_cpp", [55]),
        *record("decode", "openvino", [40]),
        *record("ttft512", "ours", [300]),
        *record("ttft512", "openvino", [330]),
        *record("ttft512", "llama_cpp", [600]),
        *record("q4_ttft", "ours", [600]),
        *record("contention", "ours", [0.4]),
    ]
    by_row = {t.row: rows.judge(records, t) for t in rows.TARGETS}
    decode = by_row["decode"]
    assert (decode.ours, decode.against, decode.ratio, decode.word) == (110, "llama_cpp", 2.0, "stretch")
    ttft = by_row["ttft512"]
    assert (ttft.against, ttft.word) == ("openvino", "must")
    assert ttft.ratio == pytest.approx(1.1)
    assert (by_row["q4_ttft"].ratio, by_row["q4_ttft"].word) == (0.5, "missed")
    assert (by_row["contention"].ratio, by_row["contention"].word) == (0.4, "must")
    assert by_row["gemma_decode"] is None


def test_the_roofline_is_the_one_that_was_worked_out_by_hand(cpu: Any) -> None:
    config = {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
    }
    shape = cpu.report.llama_shape(config)
    assert shape["weight_bytes"] == pytest.approx(269e6, rel=0.001)
    assert cpu.report.prompt_operations(512, shape) / 0.46e12 == pytest.approx(0.25, abs=0.01)
    text = cpu.report.roofline(record("decode", "ours", [50.0]), [{"read_gb_s": 26.9, "bf16_tflop_s": 0.4}], shape)
    assert "100.0 tok/s" in text
    assert "ours 50.0 (50%)" in text


def test_what_was_not_installed_is_said_and_not_counted(cpu: Any, tmp_path: Path) -> None:
    places, skipped = cpu.compare.find_places(["ours", "llama_cpp"], tmp_path, {"llama_cpp": sys.executable + "-no"})
    assert list(places) == ["ours"]
    assert "there is no" in skipped["llama_cpp"]
    result = {
        "records": record("decode", "ours", [50.0]),
        "probes": [],
        "shape": {},
        "perplexity": {},
        "skipped": skipped,
        "failures": [{"peer": "vllm", "sitting": "bf16", "error": "died"}],
    }
    text = cpu.report.full_text(result)
    assert "skipped llama_cpp: there is no" in text
    assert "FAILED vllm bf16: died" in text
    assert "llama_cpp 5" not in text
    cpu.report.write_json(tmp_path / "r.json", result)
    assert json.loads((tmp_path / "r.json").read_text())["records"][0]["values"] == [50.0]


def test_a_packed_weight_costs_what_its_perplexity_says(cpu: Any) -> None:
    scores = {
        "Q4_1": [1.011, 1.0, 2.0, 3.0],
        "Q4_1 dequantized": [1.0, 1.0, 2.0, 3.0],
    }
    # exp(0.011 / 4) - 1, and 0.0055 / sqrt(4)
    assert "+0.275%, standard error 0.275%" in cpu.report.perplexity_lines(scores)
