"""`inferplane bench serve` from its flags to its files."""

from __future__ import annotations

import builtins
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.cli.main import main

if TYPE_CHECKING:
    from tests.core.bench.conftest import FakeServer

METRICS = ("ttft", "tpot", "itl", "e2el")
# The keys of vLLM's result file that dashboards and scripts read.
FIGURES = [f"{figure}_{metric}_ms" for figure in ("mean", "median", "std", "p99") for metric in METRICS]
VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", *FIGURES,
}  # fmt: skip


def bench(fake: FakeServer, *flags: str) -> int:
    common = ["--base-url", fake.url, "--num-prompts", "5", "--random-input-len", "6", "--random-output-len", "3"]
    return main(["bench", "serve", *common, *flags])


def test_the_result_has_vllms_keys(fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--save-detailed",
        "--result-dir",
        str(tmp_path / "new"),
        "--result-filename",
        "r.json",
        "--metadata",
        "a=b",
    ]
    assert bench(fake, "--goodput", "ttft:60000", *flags) == 0
    result = json.loads((tmp_path / "new" / "r.json").read_text())
    assert result.keys() >= VLLM_KEYS | {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"}
    assert (result["completed"], result["total_output_tokens"], result["total_input_tokens"]) == (5, 15, 30)
    assert (result["model_id"], result["request_rate"], result["a"]) == ("listed", "inf", "b")
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["generated_texts"] == ["ééé"] * 5
    assert fake.bodies[1]["temperature"] == 0.0
    out = capsys.readouterr()
    figures = [f"{figure} {metric.upper()} (ms):" for figure in ("Mean", "Median", "P99") for metric in METRICS]
    for line in ("Serving Benchmark Result", "Successful requests:", *figures):
        assert line in out.out
    assert "prefix cache" in out.err, "a second run with the same seed would look faster"


def test_the_default_name(fake: FakeServer, tmp_path: Path) -> None:
    assert bench(fake, "--save-result", "--result-dir", str(tmp_path), "--max-concurrency", "2") == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("openai-infqps-concurrency2-listed-")


def test_percentiles_of_the_metrics_that_were_asked_for(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(fake, "--percentile-metrics", "e2el", "--metric-percentiles", "50,99.9") == 0
    out = capsys.readouterr().out
    assert "P99.9 E2EL (ms):" in out
    assert "P50 E2EL (ms):" in out
    assert "P50 TTFT" not in out


def test_warmups_are_not_counted(fake: FakeServer) -> None:
    assert bench(fake, "--num-warmups", "2") == 0
    assert len(fake.bodies) == 1 + 2 + 5


def test_failures_are_told_by_kind_and_status(fake: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    fake.cut_after = 2  # the first request of a run asks for two tokens only
    assert bench(fake) == 1
    out = capsys.readouterr()
    assert [line.split() for line in out.out.splitlines() if "disconnect" in line] == [["disconnect:", "5"]]
    assert "closed the connection" in out.err


def test_a_picture_that_needs_nothing(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    assert bench(fake, "--plot", str(path)) == 0
    text = path.read_text()
    drawings = [ET.fromstring(part.partition("</figure>")[0]) for part in text.split("<figure>")[1:]]
    assert [drawing.get("aria-label") for drawing in drawings] == [
        "Time to First Token",
        "Time per Output Token (excl. 1st token)",
        "Inter-token Latency",
        "End-to-end Latency",
        "Output tokens over time",
    ]
    assert all(len(drawing.find("polyline").get("points").split()) >= 5 for drawing in drawings)
    assert "http" not in text.replace(fake.url, ""), "the page fetches nothing"
    assert "Successful requests:" in text


def test_a_png_without_matplotlib_fails_before_the_measurement(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert bench(fake, "--plot", str(tmp_path / "p.png")) == 1
    assert "pip install 'inferplane[bench]'" in capsys.readouterr().err
    assert fake.bodies == []


def test_a_png(fake: FakeServer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert bench(fake, "--plot", str(tmp_path / "p.png")) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--plot", "p.pdf"], "plot"),
        (["--goodput", "x:1"], "goodput"),
        (["--result-filename", "r.txt"], "result_filename"),
        (["--dataset-name", "custom"], "dataset_path"),
        (["--max-concurrency", "0"], "max_concurrency"),
        (["--num-prompts", "0"], "num_prompts"),
        (["--request-rate", "0"], "request_rate"),
        (["--header", "x"], "header"),
    ],
)
def test_bad_flags_name_the_field(
    fake: FakeServer, flags: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(fake, *flags) == 1
    assert field in capsys.readouterr().err.splitlines()[-1]


def test_a_shared_prefix(fake: FakeServer) -> None:
    lengths = ["--prefix-repetition-prefix-len", "4", "--prefix-repetition-suffix-len", "2"]
    more = ["--prefix-repetition-num-prefixes", "1", "--prefix-repetition-output-len", "2"]
    assert bench(fake, "--dataset-name", "prefix_repetition", *lengths, *more) == 0
    prompts = [body["prompt"].split() for body in fake.bodies[1:]]
    assert {len(prompt) for prompt in prompts} == {6}
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 1
