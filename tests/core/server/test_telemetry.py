"""Spans as a collector on this host gets them, over OTLP/HTTP, and what is said when the packages are missing."""

from __future__ import annotations

import importlib.util
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferplane.errors import InvalidValue
from inferplane.metrics import RequestTimes
from inferplane.server.settings import check_settings
from inferplane.telemetry import SequenceSpan, Tracing, check_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMES = RequestTimes(
    queue=0.25, time_to_first_token=1.0, prefill=0.75, decode=2.0, inference=2.75, e2e=3.0, num_tokens=5
)


def span(**changes: Any) -> SequenceSpan:
    values: dict[str, Any] = {
        "request_id": "r", "model": "m", "began": 1_700_000_000.5, "times": TIMES, "num_prompt_tokens": 7,
        "num_sequences": 2, "max_tokens": 16, "temperature": 0.5, "top_p": 0.25, "finish_reason": "stop", "trace": {},
    }  # fmt: skip
    return SequenceSpan(**{**values, **changes})


class Collector(ThreadingHTTPServer):
    """Keeps every span that is sent to it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def spans(self) -> list[Span]:
        return [s for _, r in self.requests for resource in r.resource_spans for scope in resource.scope_spans
                for s in scope.spans]  # fmt: skip


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(found: Span) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {each.key: plain(each.value) for each in found.attributes}


def test_a_collector_gets_spans_with_the_names_of_vllm(collector: Collector) -> None:
    tracing = Tracing.to(f"http://127.0.0.1:{collector.server_port}")
    tracing.record(span(trace={"traceparent": PARENT, "tracestate": "vendor=1"}))
    tracing.record(span(request_id="other", finish_reason="error"))
    tracing.close()
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    first, second = collector.spans()
    assert (first.name, first.kind) == ("llm_request", Span.SPAN_KIND_SERVER)
    assert first.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert first.parent_span_id.hex() == "b7ad6b7169203331"
    assert first.trace_state == "vendor=1"
    assert first.start_time_unix_nano == 1_700_000_000_500_000_000
    assert first.end_time_unix_nano - first.start_time_unix_nano == 3_000_000_000
    assert attributes(first) == {
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.request.id": "r",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.25,
        "gen_ai.request.n": 2,
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.e2e": 3.0,
        "gen_ai.latency.time_in_model_prefill": 0.75,
        "gen_ai.latency.time_in_model_decode": 2.0,
        "gen_ai.latency.time_in_model_inference": 2.75,
    }
    assert (second.parent_span_id, second.status.code) == (b"", Status.STATUS_CODE_ERROR)
    assert second.trace_id != first.trace_id
    service = {
        each.key: each.value.string_value for each in collector.requests[0][1].resource_spans[0].resource.attributes
    }
    assert service["service.name"] == "inferplane"


def test_a_caller_that_is_not_sampled_is_not_recorded() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, at_once=True)
    tracing.record(span(trace={"traceparent": PARENT[:-2] + "00"}))
    tracing.record(span(trace={"traceparent": "not one"}))
    assert [each.parent for each in exporter.get_finished_spans()] == [None]


async def test_requests_become_spans_of_the_callers_trace(make: Any, collector: Collector) -> None:
    server = make(otlp_traces_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces")
    headers = {"traceparent": PARENT}
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "request_id": "mine"}
    answer = (await server.http.post("/v1/chat/completions", json=body, headers=headers)).json()
    await server.complete(n=2, max_tokens=3, seed=1)
    server.service.client.die_after = 1
    await server.complete()
    server.app.state.context.tracing.close()
    chat, *rest = collector.spans()
    assert chat.parent_span_id.hex() == "b7ad6b7169203331"
    found = attributes(chat)
    assert found["gen_ai.request.id"] == "mine"
    assert found["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == answer["usage"]["completion_tokens"] == 4
    assert found["gen_ai.response.model"] == "tiny"
    assert found["gen_ai.latency.time_in_queue"] == 0.001
    parts = found["gen_ai.latency.time_in_queue"] + found["gen_ai.latency.time_in_model_prefill"]
    assert parts + found["gen_ai.latency.time_in_model_decode"] <= found["gen_ai.latency.e2e"] + 0.001 + 1e-9
    assert [attributes(each)["gen_ai.response.finish_reasons"] for each in rest] == [["length"], ["length"], ["abort"]]


async def test_a_beam_search_becomes_a_span_for_each_prompt(make: Any, collector: Collector) -> None:
    server = make(otlp_traces_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces")
    server.service.client.die_after = 1
    body = {"prompt": [[97], [97, 98]], "use_beam_search": True, "n": 2, "max_tokens": 2, "model": "tiny"}
    answer = await server.http.post("/v1/completions", json=body, headers={"traceparent": PARENT})
    assert answer.status_code >= 500
    server.app.state.context.tracing.close()
    spans = collector.spans()
    assert [attributes(each)["gen_ai.usage.prompt_tokens"] for each in spans] == [1, 2]
    assert {each.parent_span_id.hex() for each in spans} == {"b7ad6b7169203331"}
    assert [attributes(each)["gen_ai.response.finish_reasons"] for each in spans] == [["abort"]] * 2
    (line,) = [
        line
        for line in (await server.http.get("/metrics")).text.splitlines()
        if line.startswith("inferplane:request_aborted_total") and 'reason="engine"' in line
    ]
    assert line.endswith(" 2.0")


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://host/x", "http://"])
def test_what_is_no_url_of_a_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidValue, match="4318/v1/traces"):
        check_endpoint(endpoint)


def test_missing_packages_are_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from inferplane.config import Config

    server = Config.from_flat({"otlp_traces_endpoint": "grpc://127.0.0.1:4317"}).server
    with pytest.raises(InvalidValue, match="opentelemetry-exporter-otlp-proto-grpc"):
        check_settings(server)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "opentelemetry" in name else find(name))
    with pytest.raises(InvalidValue, match=r"inferplane\[otel\]"):
        check_settings(server)
