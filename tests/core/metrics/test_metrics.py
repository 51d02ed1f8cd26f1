"""Counters and histograms against prometheus_client's own: same observations, same text; alone and over processes."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inferplane.cells import NUM_RUNNING, Cells, SharedRows
from inferplane.messages import Stats
from inferplane.metrics import Metrics, SequenceTimer
from inferplane.metrics.names import ENGINE_GAUGES, PREFIX, VLLM_PREFIX

VLLM_NAMES = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("prompt_tokens", "generation_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "request_success"),
    *("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "corrupted_requests"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
    *("request_params_max_tokens", "iteration_tokens_total", "request_prefill_kv_computed_tokens"),
}
"""Of those that dashboards query (FEATURES §1.20), the ones that this version can measure."""


def make(cells: Cells | None = None, stats: Stats | None = None, **settings: Any) -> Metrics:
    metrics = Metrics(
        model_name='a"b\\c', engine=0, max_model_len=512, stats=lambda: stats or Stats(), cells=cells, **settings
    )
    metrics.handlers(["/v1/completions"])
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample without the labels that all have."""
    common = {"model_name", "engine"}
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k not in common)): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_histogram_is_that_of_the_prometheus_client() -> None:
    metrics = make()
    registry = CollectorRegistry()
    name = PREFIX + "inter_token_latency_seconds"
    bounds = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
    oracle = Histogram(name, "", registry=registry, buckets=bounds)
    draw = random.Random(7)
    for value in [*bounds, *(10 ** draw.uniform(-3, 2.5) for _ in range(500))]:
        metrics.inter_token_latency.observe(value)
        oracle.observe(value)
    found = {key: value for key, value in samples(metrics).items() if key[0].startswith(name)}
    wanted = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value), key


def test_several_tokens_at_once_are_as_many_observations() -> None:
    metrics = make()
    timer = SequenceTimer(metrics, 100.0)
    timer.scheduled(0.5, 10, 4)
    timer.tokens(1, 101.0)
    timer.tokens(3, 101.6)
    timer.finish("stop", 10)
    found = samples(metrics)
    itl = PREFIX + "inter_token_latency_seconds"
    assert found[itl + "_count", frozenset()] == 3
    assert found[itl + "_sum", frozenset()] == pytest.approx(0.6)
    assert found[itl + "_bucket", frozenset({("le", "0.2")})] - found[itl + "_bucket", frozenset({("le", "0.15")})] == 3
    times = timer.times()
    assert (times.queue, times.prefill, times.num_tokens) == (0.5, 0.5, 4)
    assert (times.decode, times.inference, times.e2e) == pytest.approx((0.6, 1.1, 1.6))
    assert found[PREFIX + "prompt_tokens_cached_total", frozenset()] == 4
    assert found[PREFIX + "prompt_tokens_by_source_total", frozenset({("source", "local_compute")})] == 6


def test_labels_are_quoted_and_methods_bounded() -> None:
    metrics = make()
    for method in ("POST", 'P"\n', "EVERY", "WORD"):
        metrics.http("/v1/completions", method, 200, 0.1)
    metrics.http("/no/such/route", "GET", 404, 0.1)
    (family,) = [f for f in text_string_to_metric_families(metrics.render().decode()) if f.name == "http_requests"]
    found = {(s.labels["handler"], s.labels["method"], s.labels["status"]): s.value for s in family.samples}
    completions = "/v1/completions"
    assert found == {
        (completions, "POST", "2xx"): 1,
        (completions, "other", "2xx"): 3,
        ("none", "GET", "4xx"): 1,
    }
    (gauge,) = [f for f in text_string_to_metric_families(metrics.render().decode()) if "requests_running" in f.name]
    assert gauge.samples[0].labels["model_name"] == 'a"b\\c'


def test_names_of_vllm_are_shown_where_the_user_wants_them() -> None:
    def names(metrics: Metrics) -> set[str]:
        metrics.info("cache_config_info", "", lambda: [{"block_size": "16"}])
        metrics.info("selection_info", "", lambda: [{"subject": "platform"}])
        text = metrics.render().decode()
        return {f.name.removeprefix(VLLM_PREFIX) for f in text_string_to_metric_families(text) if "vllm:" in f.name}

    assert names(make()) == set()
    assert names(make(vllm_names=True)) == VLLM_NAMES
    metrics = make(vllm_names=True, stats=Stats(generation_tokens=5))
    metrics.finished("stop")
    found = samples(metrics)
    for (name, labels), value in found.items():
        if name.startswith(VLLM_PREFIX):
            assert found[PREFIX + name.removeprefix(VLLM_PREFIX), labels] == value


def test_steps_are_a_histogram_of_the_engine() -> None:
    stats = Stats(step_tokens=[4, 1, *[0] * 12], step_tokens_sum=12)
    found = samples(make(stats=stats))
    name = PREFIX + "iteration_tokens_total"
    assert (found[name + "_count", frozenset()], found[name + "_sum", frozenset()]) == (5, 12)
    assert found[name + "_bucket", frozenset({("le", "1.0")})] == 4
    assert {field for _, field in ENGINE_GAUGES.values()} <= set(Stats.__struct_fields__)


WRITER = """
import sys
from inferplane.cells import Cells, NUM_RUNNING, SharedRows
from inferplane.messages import Stats
from inferplane.metrics import Metrics
shared = SharedRows(int(sys.argv[1]), 3)
cells = Cells(shared.rows, own=int(sys.argv[2]))
metrics = Metrics(model_name="m", engine=0, max_model_len=512, stats=Stats, cells=cells)
metrics.handlers(["/v1/completions"])
for _ in range(1000):
    metrics.time_to_first_token.observe(0.03)
    metrics.finished("length")
    metrics.http("/v1/completions", "POST", 200, 0.2)
cells.own[NUM_RUNNING] = 5
import os; os.abort() if sys.argv[2] == "1" else None
"""


def test_processes_add_up_and_what_a_dead_one_counted_stays() -> None:
    shared = SharedRows.create(3)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(shared.descriptor), str(row)],
            pass_fds=(shared.descriptor,), stderr=subprocess.DEVNULL,
        )
        for row in (1, 2)
    ]  # fmt: skip
    cells = Cells(shared.rows, own=0)
    metrics = make(cells)
    metrics.finished("length")
    statuses = [writer.wait(30) for writer in writers]
    assert (statuses[0] != 0, statuses[1]) == (True, 0)
    found = samples(metrics)
    assert found[PREFIX + "request_success_total", frozenset({("finished_reason", "length")})] == 2001
    assert found[PREFIX + "time_to_first_token_seconds_count", frozenset()] == 2000
    assert found[PREFIX + "time_to_first_token_seconds_sum", frozenset()] == pytest.approx(60)
    assert cells.total(NUM_RUNNING) == cells.others(NUM_RUNNING) == 10
    shared.forget(1)
    assert cells.total(NUM_RUNNING) == 5
    assert samples(metrics) == found
    shared.close()
