"""Spans of requests to an OpenTelemetry collector, names as vLLM's; knows neither HTTP nor the engine.

The packages are the optional extra `inferplane[otel]` and are imported only where the user names an endpoint.
"""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from inferplane.errors import InvalidValue
from inferplane.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace.export import SpanExporter

    from inferplane.metrics.timer import RequestTimes

log = get_logger(__name__)

TRACE_HEADERS = ("traceparent", "tracestate")
"""Of W3C trace context."""
FIELD = "otlp_traces_endpoint"
_SDK = "opentelemetry.sdk"
_EXPORTERS = {
    "http": "opentelemetry.exporter.otlp.proto.http",
    "https": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}
EXPORT_SECONDS = 5.0
"""For one batch, tries included."""
CLOSE_SECONDS = 3.0


class SequenceSpan(NamedTuple):
    """What a span tells of one sequence."""

    request_id: str
    model: str
    began: float
    """Seconds since the epoch."""
    times: RequestTimes
    num_prompt_tokens: int
    num_sequences: int
    max_tokens: int | None
    temperature: float
    top_p: float
    finish_reason: str
    trace: Mapping[str, str]
    """The incoming headers of TRACE_HEADERS."""


def check_endpoint(endpoint: str | None) -> None:
    """Called before anything slow starts. Raises InvalidValue for no URL, or when a package is missing."""
    if endpoint is None:
        return
    scheme = urlsplit(endpoint).scheme
    if scheme not in _EXPORTERS or not urlsplit(endpoint).netloc:
        remedy = "write http://HOST:4318/v1/traces, or grpc://HOST:4317"
        raise InvalidValue(FIELD, endpoint, "is no URL of a collector", remedy=remedy)
    if not _installed(_SDK) or (scheme != "grpc" and not _installed(_EXPORTERS[scheme])):
        remedy = "install them: pip install 'inferplane[otel]'"
        raise InvalidValue(FIELD, endpoint, "needs the OpenTelemetry packages, which are not installed", remedy=remedy)
    if not _installed(_EXPORTERS[scheme]):
        remedy = "pip install opentelemetry-exporter-otlp-proto-grpc, or use http://HOST:4318/v1/traces"
        raise InvalidValue(FIELD, endpoint, "needs a package that is not installed", remedy=remedy)


class Tracing:
    """Gives spans to a thread that sends them in batches; a collector that is away costs a log line, no request."""

    def __init__(self, exporter: SpanExporter, *, at_once: bool = False) -> None:
        """at_once: export each span as it ends, for tests."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create()
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "inferplane"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        processor = SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("inferplane")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Tracing:
        """Over OTLP, by the scheme of the URL. Raises InvalidValue."""
        check_endpoint(endpoint)
        return cls(_exporter(endpoint))

    def record(self, span: SequenceSpan) -> None:
        """A sequence has ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        begin = int(span.began * 1e9)
        recorded = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(dict(span.trace)),
            kind=SpanKind.SERVER,
            start_time=begin,
            attributes=_attributes(span),
        )
        if span.finish_reason == "error":
            recorded.set_status(Status(StatusCode.ERROR))
        recorded.end(end_time=begin + int(span.times.e2e * 1e9))

    def close(self) -> None:
        """Send what is left, for CLOSE_SECONDS at most."""
        # The SDK waits longer than a server that ends should.
        thread = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            log.warning("the last traces could not be sent within %g s", CLOSE_SECONDS)


def _attributes(span: SequenceSpan) -> dict[str, Any]:
    times = span.times
    values = {
        "gen_ai.response.model": span.model,
        "gen_ai.response.finish_reasons": [span.finish_reason],
        "gen_ai.request.id": span.request_id,
        "gen_ai.request.max_tokens": span.max_tokens,
        "gen_ai.request.temperature": span.temperature,
        "gen_ai.request.top_p": span.top_p,
        "gen_ai.request.n": span.num_sequences,
        "gen_ai.usage.prompt_tokens": span.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": times.num_tokens,
        "gen_ai.latency.time_in_queue": times.queue,
        "gen_ai.latency.time_to_first_token": times.time_to_first_token,
        "gen_ai.latency.e2e": times.e2e,
        "gen_ai.latency.time_in_model_prefill": times.prefill,
        "gen_ai.latency.time_in_model_decode": times.decode,
        "gen_ai.latency.time_in_model_inference": times.inference,
    }
    return {name: value for name, value in values.items() if value is not None}


def _exporter(endpoint: str) -> SpanExporter:
    if urlsplit(endpoint).scheme == "grpc":
        grpc = importlib.import_module(_EXPORTERS["grpc"] + ".trace_exporter")
        found: SpanExporter = grpc.OTLPSpanExporter(
            endpoint=endpoint.removeprefix("grpc://"), insecure=True, timeout=EXPORT_SECONDS
        )
        return found
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"
    return OTLPSpanExporter(endpoint=url, timeout=EXPORT_SECONDS)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
