"""Everything beside generation: keys, models, tokens, health, metrics, and what the module imports."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferplane import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = ("first-key", "second-key")
ROUTES = {
    "GET": ["/v1/models", "/v1/models/tiny", "/version", "/load", "/metrics", "/server_info", "/docs", "/openapi.json"],
    "POST": ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"],
}


def all_routes(app: Any) -> set[tuple[str, str]]:
    return {
        (method, route.path.replace("{name:path}", "tiny"))
        for route in app.routes
        for method in route.methods - {"HEAD"}
        if "path" in vars(route)
    }


async def test_every_route_needs_a_key_but_the_probes_and_the_page(make: Callable[..., Any]) -> None:
    server = make(api_key=KEYS)
    free = {("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/")}
    routes = all_routes(server.app)
    assert free | {(method, path) for method, paths in ROUTES.items() for path in paths} <= routes
    for method, path in sorted(routes | {("GET", "/nowhere")}):
        answer = await server.http.request(method, path)
        if (method, path) in free:
            assert answer.status_code == 200, path
            continue
        assert answer.status_code == 401, path
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Authorization": "Bearer first-key"}, True),
        ({"authorization": "bearer second-key"}, True),
        ({"x-api-key": "second-key"}, True),
        ({"Authorization": "Bearer first-key2"}, False),
        ({"Authorization": "Bearer first"}, False),
        ({"Authorization": "first-key"}, False),
        ({"Authorization": "Basic first-key"}, False),
        ({"Authorization": "Bearer "}, False),
        ({"x-api-key": "clé"}, False),
    ],
)
async def test_keys(make: Callable[..., Any], headers: dict[str, str], allowed: bool) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    answer = await make(api_key=KEYS).http.get("/v1/models", headers=encoded)
    assert answer.status_code == (200 if allowed else 401)


async def test_models(server: Any) -> None:
    body = (await server.http.get("/v1/models")).json()
    assert body["object"] == "list"
    first, second = body["data"]
    assert (first["id"], second["id"]) == ("tiny", "tiny-alias")
    assert set(first) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert (first["object"], first["max_model_len"]) == ("model", 128)
    assert (await server.http.get("/v1/models/tiny-alias")).json() == second
    missing = await server.http.get("/v1/models/org/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_tokenize_and_back(server: Any) -> None:
    answer = await server.http.post("/tokenize", json={"prompt": "Hé<|im_end|>", "return_token_strs": True})
    body = answer.json()
    assert body["tokens"] == [72, 0xC3, 0xA9, 258]
    assert (body["count"], body["max_model_len"], len(body["token_strs"])) == (4, 128, 4)
    assert body["token_strs"][3] == "<|im_end|>"
    back = await server.http.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": "Hé<|im_end|>"}


async def test_a_prompt_may_be_the_name_of_a_field(server: Any) -> None:
    answer = await server.http.post("/tokenize", json={"prompt": "messages"})
    assert bytes(answer.json()["tokens"]) == b"messages"


async def test_tokenize_a_conversation(server: Any) -> None:
    messages = [{"role": "user", "content": "a"}]
    with_prompt = (await server.http.post("/tokenize", json={"messages": messages})).json()
    body = {"messages": messages, "add_generation_prompt": False}
    without = (await server.http.post("/tokenize", json=body)).json()
    assert with_prompt["tokens"] == [257, *b"user\na", 258, 10, 257, *b"assistant\n"]
    assert without["tokens"] == [257, *b"user\na", 258, 10]
    assert with_prompt["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
async def test_bad_tokens(server: Any, path: str, body: dict[str, Any], field: str) -> None:
    answer = await server.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_small_routes(server: Any) -> None:
    assert (await server.http.get("/health")).status_code == 200
    assert (await server.http.post("/ping")).status_code == 200
    assert (await server.http.get("/version")).json() == {"version": __version__}
    assert (await server.http.get("/load")).json() == {"server_load": 0}


async def test_server_info_holds_the_decisions_and_no_key(make: Callable[..., Any]) -> None:
    server = make(api_key=KEYS)
    answer = await server.http.get("/server_info", headers={"x-api-key": KEYS[0]})
    body = answer.json()
    assert body["selection"]["decisions"][0]["chosen"] == "scripted"
    assert body["timeline"] == [{"phase": "probe", "seconds": 0.25}]
    assert body["engine_timeline"] == [{"phase": "weights", "seconds": 0.5}]
    assert body["capacity"]["max_model_len"] == 128
    assert body["selection"]["warnings"] == ["a warning"]
    assert not any(key in answer.text for key in KEYS)


async def test_unknown_routes_and_methods(server: Any) -> None:
    missing = await server.http.get("/v2/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    wrong = await server.http.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]


async def test_a_body_that_is_too_large(make: Callable[..., Any]) -> None:
    server = make(max_body_size=100)
    declared = await server.complete(prompt="a" * 100)
    assert (declared.status_code, declared.json()["error"]["code"]) == (413, "request_too_large")

    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 10

    headers = {"content-type": "application/json"}
    chunked = await server.http.post("/v1/completions", content=pieces(), headers=headers)
    assert chunked.status_code == 413


GOLDEN = {
    "inferplane:num_requests_running": "gauge",
    "inferplane:num_requests_waiting": "gauge",
    "inferplane:num_tokens_waiting": "gauge",
    "inferplane:oldest_waiting_seconds": "gauge",
    "inferplane:kv_cache_usage_perc": "gauge",
    "inferplane:cache_config_info": "gauge",
    "inferplane:selection_info": "gauge",
    "inferplane:prompt_tokens": "counter",
    "inferplane:generation_tokens": "counter",
    "inferplane:request_success": "counter",
    "inferplane:num_preemptions": "counter",
    "inferplane:prefix_cache_queries": "counter",
    "inferplane:prefix_cache_hits": "counter",
    "inferplane:corrupted_requests": "counter",
    "inferplane:engine_restarts": "counter",
    "inferplane:request_rejected": "counter",
    "inferplane:request_aborted": "counter",
    "inferplane:prompt_tokens_by_source": "counter",
    "inferplane:prompt_tokens_cached": "counter",
    "inferplane:iteration_tokens_total": "histogram",
    "inferplane:request_max_num_generation_tokens": "histogram",
    "inferplane:request_prefill_kv_computed_tokens": "histogram",
    "inferplane:time_to_first_token_seconds": "histogram",
    "inferplane:inter_token_latency_seconds": "histogram",
    "inferplane:request_time_per_output_token_seconds": "histogram",
    "inferplane:e2e_request_latency_seconds": "histogram",
    "inferplane:request_queue_time_seconds": "histogram",
    "inferplane:request_prefill_time_seconds": "histogram",
    "inferplane:request_decode_time_seconds": "histogram",
    "inferplane:request_inference_time_seconds": "histogram",
    "inferplane:request_prompt_tokens": "histogram",
    "inferplane:request_generation_tokens": "histogram",
    "inferplane:request_params_n": "histogram",
    "inferplane:request_params_max_tokens": "histogram",
    "http_requests": "counter",
    "http_request_duration_seconds": "histogram",
}


async def test_metrics_have_the_names_that_dashboards_query(server: Any) -> None:
    server.engine.outputs[None] = [259, 260, 256]
    await server.complete(n=2)
    await server.complete(stream=True)
    await server.http.get("/v1/models/tiny")
    answer = await server.http.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {name: family.type for name, family in families.items() if not name.endswith("_created")} == GOLDEN
    for name, family in families.items():
        if name.startswith("inferplane:"):
            assert all(s.labels["model_name"] == "tiny" and s.labels["engine"] == "0" for s in family.samples), name

    def value(family: str, sample: str, **labels: str) -> float:
        (found,) = [
            s.value for s in families[family].samples if s.name == sample and labels.items() <= s.labels.items()
        ]
        return float(found)

    assert value("inferplane:num_requests_running", "inferplane:num_requests_running") == 3
    assert value("inferplane:generation_tokens", "inferplane:generation_tokens_total") == 22
    stopped = {"finished_reason": "stop"}
    assert value("inferplane:request_success", "inferplane:request_success_total", **stopped) == 3
    ttft = "inferplane:time_to_first_token_seconds"
    assert value(ttft, ttft + "_count") == 3
    itl = "inferplane:inter_token_latency_seconds"
    assert value(itl, itl + "_count") == 6
    tokens = "inferplane:request_generation_tokens"
    assert value(tokens, tokens + "_sum") == 9
    handler = {"handler": "/v1/completions", "method": "POST", "status": "2xx"}
    assert value("http_requests", "http_requests_total", **handler) == 2


async def test_the_description_of_the_api_is_generated(server: Any) -> None:
    description = (await server.http.get("/openapi.json")).json()
    body = description["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/CompletionBody"}
    assert "prompt" in description["components"]["schemas"]["CompletionBody"]["properties"]


def test_the_front_end_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, inferplane.server.app; sys.exit(not {'torch', 'transformers'}.isdisjoint(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
