"""Figures against numbers worked out by hand."""

from __future__ import annotations

import pytest

from inferplane.bench.statistics import (
    Outcome,
    parse_goodput,
    parse_metrics,
    parse_percentiles,
    samples_of,
    summarize,
)
from inferplane.errors import InvalidValue

FAST = Outcome(started=10.0, ended=10.6, chunk_times=[10.1, 10.3, 10.5], prompt_tokens=4, output_tokens=5)
"""Three chunks of five tokens: 100 ms to the first, then 400 ms for four more."""
SLOW = Outcome(started=10.0, ended=12.0, chunk_times=[11.0, 12.0], prompt_tokens=6, output_tokens=2, cached_tokens=3)
ONE = Outcome(started=11.0, ended=11.5, chunk_times=[11.25], prompt_tokens=1, output_tokens=1)
FAILED = Outcome(started=10.0, ended=14.0, failure="http 500", message="because")


def test_latencies_of_requests() -> None:
    found = samples_of([FAST, SLOW, ONE, FAILED])
    assert found["ttft"] == pytest.approx([100.0, 1000.0, 250.0])
    assert found["tpot"] == pytest.approx([100.0, 1000.0])
    assert found["itl"] == pytest.approx([200.0, 200.0, 1000.0])
    assert found["e2el"] == pytest.approx([500.0, 2000.0, 250.0])


def test_the_summary() -> None:
    result = summarize([FAST, SLOW, ONE, FAILED], percentiles=(50.0, 99.0), goodput={"ttft": 300.0, "tpot": 500.0})
    assert (result["completed"], result["failed"], result["failures"]) == (3, 1, {"http 500": 1})
    assert (result["total_input_tokens"], result["total_output_tokens"], result["total_cached_tokens"]) == (11, 8, 3)
    assert result["duration"] == pytest.approx(4.0)
    assert result["request_throughput"] == pytest.approx(0.75)
    assert result["output_throughput"] == pytest.approx(2.0)
    assert result["total_token_throughput"] == pytest.approx(19 / 4)
    assert result["request_goodput"] == pytest.approx(0.5)
    assert result["mean_ttft_ms"] == pytest.approx(450.0)
    assert result["median_ttft_ms"] == result["p50_ttft_ms"] == pytest.approx(250.0)
    assert result["p99_ttft_ms"] == pytest.approx(250 + 0.98 * 750)
    assert result["std_itl_ms"] == pytest.approx(((2 * 266.6666667**2 + 533.3333333**2) / 3) ** 0.5)
    assert result["max_concurrent_requests"] == 3
    # In the first second from the start: all of FAST; in the second: one of SLOW and ONE; then the other.
    assert result["max_output_tokens_per_s"] == pytest.approx(5.0)


def test_nothing_but_failures() -> None:
    result = summarize([FAILED])
    assert (result["completed"], result["output_throughput"], result["p99_e2el_ms"]) == (0, 0.0, 0.0)


def test_no_goodput_unless_asked() -> None:
    assert summarize([FAST])["request_goodput"] is None


def test_words_of_the_flags() -> None:
    assert parse_goodput(["ttft:500", "e2el:1.5"]) == {"ttft": 500.0, "e2el": 1.5}
    assert parse_percentiles("50,99.9") == (50.0, 99.9)
    assert parse_metrics("ttft, e2el") == ("ttft", "e2el")


@pytest.mark.parametrize("item", ["ttft", "itl:5", "ttft:-1", "ttft:fast"])
def test_bad_goodput(item: str) -> None:
    with pytest.raises(InvalidValue, match="goodput"):
        parse_goodput([item])


@pytest.mark.parametrize("text", ["101", "a", ""])
def test_bad_percentiles(text: str) -> None:
    with pytest.raises(InvalidValue, match="metric_percentiles"):
        parse_percentiles(text)


def test_bad_metric() -> None:
    with pytest.raises(InvalidValue, match="percentile_metrics"):
        parse_metrics("ttft,latency")
