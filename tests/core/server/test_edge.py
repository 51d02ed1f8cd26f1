"""Keys on every route, ids, access log, pages of other origins, and what goes wrong outside of routes."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from inferplane.config import Config
from inferplane.errors import InvalidValue
from inferplane.server.app import create_app
from inferplane.server.settings import check_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "sk-secret-1"
PAGES = ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")
EVERYTHING = {"server_dev_mode": True, "enable_tokenizer_info_endpoint": True}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="inferplane")
    return caplog


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path.replace("{name}", "tiny"), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_every_operation_needs_a_key_but_the_probes_and_the_page(make: Callable[..., Any]) -> None:
    server = make(api_key=KEY, **EVERYTHING)
    document = (await server.http.get("/openapi.json", headers={"x-api-key": KEY})).json()
    found = operations(document)
    described = {(method, path) for method, path, _ in found}
    served = {
        (method, route.path.replace("{name:path}", "tiny"))
        for route in server.app.routes
        for method in route.methods - {"HEAD"}
    }
    assert served - described == {("GET", path) for path in PAGES}
    assert described <= served
    for path in PAGES:
        assert (await server.http.get(path)).status_code == 401
    for method, path, operation in found:
        answer = await server.http.request(method, path)
        is_open = path in ("/health", "/ping", "/")
        assert answer.status_code == (200 if is_open else 401), path
        assert ("401" in operation["responses"]) is not is_open
        assert (operation["security"] == []) is is_open
        wrong = await server.http.request(method, path, headers={"x-api-key": KEY + "x"})
        assert wrong.status_code == answer.status_code
        right = await server.http.request(method, path, headers={"x-api-key": KEY})
        assert right.status_code != 401


@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics/", "/.//metrics", "/METRICS", "/health/", "/health/../v1/models"]
)
async def test_only_exact_paths_are_open(make: Callable[..., Any], path: str) -> None:
    assert (await make(api_key=KEY).http.get(path)).status_code == 401
    status = (await make(api_key=KEY, metrics_without_key=True).http.get(path)).status_code
    assert status == (200 if path == "/metrics" else 401)


async def test_keys_of_a_file(make: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team\nfirst\n\n  second  \n")
    server = make(api_key="third", api_key_file=str(file))
    for key in ("first", "second", "third"):
        assert (await server.http.get("/version", headers={"x-api-key": key})).status_code == 200
    for key in ("", "# the team", "  second  x"):
        assert (await server.http.get("/version", headers={"x-api-key": key})).status_code == 401


@pytest.mark.parametrize("text", [None, "", "# nobody\n"])
def test_a_file_without_a_key_opens_nothing(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidValue, match="api_key_file"):
        check_settings(Config.from_flat({"api_key_file": str(file)}).server)


def test_keys_from_a_pipe_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidValue, match="no ordinary file"):
        check_settings(Config.from_flat({"api_key_file": str(pipe)}).server)


async def test_the_keys_are_told_nowhere(make: Callable[..., Any], lines: Any) -> None:
    server = make(api_key=KEY, enable_log_requests=True, **EVERYTHING)
    headers = {"authorization": f"Bearer {KEY}"}
    for path in ("/server_info", "/startup", "/openapi.json", "/metrics", "/nowhere", "/tokenizer_info"):
        assert KEY not in (await server.http.get(path, headers=headers)).text
    await server.http.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
    assert "prompt 'Hi'" in lines.text
    assert KEY not in lines.text


async def test_errors_have_one_shape(make: Callable[..., Any]) -> None:
    server = make(max_body_size=100, api_key=KEY)
    key = {"x-api-key": KEY}
    json_type = {"content-type": "application/json", **key}
    post = server.http.post
    answers = {
        401: await server.http.get("/v1/models"),
        404: await server.http.get("/v1/models/none", headers=key),
        405: await server.http.get("/v1/completions", headers=key),
        413: await post("/v1/completions", json={"prompt": "a" * 200}, headers=key),
        415: await post("/v1/completions", content=b"{}", headers=key),
        400: await post("/v1/completions", json={"prompt": [1, "a"]}, headers=key),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
    assert answers[400].json()["error"]["param"] == "prompt"
    zipped = await post("/v1/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip", **json_type})
    assert (zipped.status_code, zipped.json()["error"]["code"]) == (415, "invalid_content_encoding")


async def test_a_failure_nobody_expected_is_found_by_its_id(make: Callable[..., Any], lines: Any) -> None:
    server = make(enable_request_id_headers=True, allowed_origins=["https://page.example"])

    def explode(*_: Any) -> Any:
        raise RuntimeError("secret path /root/x")

    server.engine.submit = explode
    for stream in (False, True):
        headers = {"x-request-id": f"mine-{stream}", "origin": "https://page.example"}
        body = {"prompt": "Hi", "stream": stream}
        answer = await server.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert f"mine-{stream}" in answer.json()["error"]["message"]
        assert answer.headers["x-request-id"] == f"mine-{stream}"
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert f"unexpected error in request 'mine-{stream}'" in lines.text
    metrics = (await server.http.get("/metrics")).text
    assert re.search(r'http_requests_total\{[^}]*status="5xx"\} 2\.0', metrics)


async def test_the_id_of_a_request_goes_everywhere(make: Callable[..., Any], lines: Any) -> None:
    server = make(enable_request_id_headers=True, enable_log_requests=True, enable_log_outputs=True, max_log_len=3)
    answer = await server.http.post(
        "/v1/completions", json={"prompt": "Hello you", "request_id": "body"}, headers={"X-Request-Id": "abc/1"}
    )
    assert answer.headers["x-request-id"] == "abc/1"
    assert answer.json()["id"] == "cmpl-abc/1"
    assert server.engine.submitted[-1].request_id.startswith("abc/1-")
    assert "request 'abc/1': prompt 'Hel', 9 tokens [72, 101, 108]" in lines.text
    assert "request 'abc/1': output 0 'Hel', 5 tokens, finished by length" in lines.text
    assert re.search(r'"POST /v1/completions" 200 \d\.\d{3}s \'abc/1\'', lines.text)
    # The body's id serves where the header has none.
    answer = await server.chat(request_id="body")
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("body", "chatcmpl-body")
    for path in ("/v1/models", "/nowhere"):
        assert re.fullmatch("[0-9a-f]{32}", (await server.http.get(path)).headers["x-request-id"])


@pytest.mark.parametrize("bad", [b"", b"a b", b"a\tb", b"x" * 129, b"\xff", "é".encode()])
async def test_a_bad_id_is_replaced(make: Callable[..., Any], bad: bytes) -> None:
    answer = await make(enable_request_id_headers=True).http.get("/version", headers={b"x-request-id": bad})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_ids_are_not_sent_unless_asked_for(server: Any) -> None:
    answer = await server.http.get("/version", headers={"x-request-id": "abc"})
    assert "x-request-id" not in answer.headers


async def test_a_body_id_that_no_header_can_hold(make: Callable[..., Any], lines: Any) -> None:
    server = make(enable_request_id_headers=True)
    answer = await server.complete(request_id="日本\u2028")
    assert answer.status_code == 400
    answer = await server.complete(request_id="日本")
    assert answer.headers["x-request-id"] == "\\u65e5\\u672c"


async def test_the_access_log_stays_one_line_each(make: Callable[..., Any], lines: Any) -> None:
    server = make(disable_access_log_for_endpoints="/health,/metrics")
    for path in ("/health", "/metrics", "/v1/models", "/a%0Ab%1b[31m"):
        await server.http.get(path)
    shown = [record.getMessage() for record in lines.records if record.name == "inferplane.access"]
    assert len(shown) == 2
    assert '"GET /v1/models" 200' in shown[0]
    assert '"GET /a%0Ab%1b' in shown[1]
    assert all(line.isprintable() for line in shown)
    lines.clear()
    await make(disable_uvicorn_access_log=True).http.get("/v1/models")
    assert not lines.records


async def test_pages_of_other_origins_may_not_read(server: Any) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for answer in (
        await server.http.options("/v1/completions", headers=headers),
        await server.http.get("/v1/models", headers=headers),
    ):
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("origin", "settings", "allowed"),
    [
        ("http://127.0.0.1:8000", {}, True),
        ("http://localhost:3000", {}, True),
        ("http://[::1]:8000", {}, True),
        ("http://evil.example:8000", {}, False),
        ("http://test", {}, False),
        ("http://127.0.0.1.evil.example", {}, False),
        ("null", {}, False),
        ("http://[", {}, False),
        ("", {}, False),
        ("vscode-webview://abc", {}, True),
        ("http://evil.example:8000", {"allowed_origins": "*"}, True),
        ("https://page.example", {"allowed_origins": "https://page.example"}, True),
        ("http://test", {"host": "0.0.0.0"}, True),
        ("http://evil.example", {"host": "0.0.0.0"}, False),
        ("http://evil.example", {"api_key": KEY}, True),
    ],
)
async def test_a_page_whose_name_points_here_is_no_page_of_ours(
    make: Callable[..., Any], origin: str, settings: dict[str, Any], allowed: bool
) -> None:
    server = make(**settings)
    for path, body in (("/v1/completions", {"prompt": "Hi"}), ("/tokenize", {"prompt": "Hi"})):
        # With rebinding, the browser sends its own idea of the host.
        answer = await server.http.post(path, json=body, headers={"origin": origin, "x-api-key": KEY})
        assert answer.status_code == (200 if allowed else 403), answer.text
        if not allowed:
            assert answer.json()["error"]["code"] == "forbidden_origin"


async def test_origins_that_may(make: Callable[..., Any]) -> None:
    server = make(allowed_origins='["https://page.example", "http://localhost:3000"]', api_key=KEY)
    ask = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    answer = await server.http.options("/v1/chat/completions", headers=ask)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert "DELETE" not in answer.headers["access-control-allow-methods"]
    # Without a key, the page may at least read why.
    refused = await server.http.get("/v1/models", headers={"origin": "https://page.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example"
    other = await server.http.options("/v1/chat/completions", headers={**ask, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("allow_credentials", {"allow_credentials": True}),
        ("allow_credentials", {"allow_credentials": True, "allowed_origins": "*"}),
        ("allowed_origins", {"allowed_origins": "page.example"}),
        ("allowed_origins", {"allowed_origins": "https://page.example/path"}),
        ("root_path", {"root_path": "llm"}),
        ("root_path", {"root_path": "/llm/"}),
        ("enable_log_outputs", {"enable_log_outputs": True}),
        ("ssl_keyfile", {"ssl_keyfile": "k.pem"}),
        ("ssl_certfile", {"ssl_certfile": "/no/such"}),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_settings(Config.from_flat(values).server)
    assert caught.value.field == field


def test_lists_are_taken_in_three_ways() -> None:
    for said in (("a", "b"), "a,b", '["a", "b"]', ["a, b"]):
        assert Config.from_flat({"disable_access_log_for_endpoints": said}).server.disable_access_log_for_endpoints == (
            "a",
            "b",
        )
    with pytest.raises(InvalidValue):
        Config.from_flat({"allowed_methods": "[a"})
    with pytest.raises(InvalidValue):
        Config.from_flat({"allowed_methods": "a,,b"})


class Signature:
    """An ASGI middleware of the user's."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def signed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-signed", b"yes"))
            await send(message)

        await self._app(scope, receive, signed)


async def test_a_middleware_of_the_users_sees_only_requests_with_a_key(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import textwrap  # any importable module will do

    monkeypatch.setattr(textwrap, "Signature", Signature, raising=False)
    server = make(middleware="textwrap.Signature", api_key=KEY)
    assert "x-signed" not in (await server.http.get("/version")).headers
    assert (await server.http.get("/version", headers={"x-api-key": KEY})).headers["x-signed"] == "yes"
    for bad in ("no.such.Thing", "textwrap.nothing", "textwrap.dedent", "Thing"):
        with pytest.raises(InvalidValue, match="middleware"):
            make(middleware=bad)


async def test_behind_a_proxy_with_a_prefix(make: Callable[..., Any]) -> None:
    app = create_app(make(api_key=KEY, root_path="/llm").service)
    transport = httpx.ASGITransport(app, root_path="/llm")
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/llm/health")).status_code == 200
        assert (await client.get("/llm/v1/models")).status_code == 401
        assert (await client.get("/llm/v1/models", headers={"x-api-key": KEY})).status_code == 200


async def test_docs_can_be_switched_off(make: Callable[..., Any]) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert (await make().http.get(path)).status_code == 200
        assert (await make(disable_fastapi_docs=True).http.get(path)).status_code == 404


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "é", "", "a/../b", "\x00"])
async def test_a_host_header_that_is_no_host(server: Any, host: str) -> None:
    headers = {"host": host.encode(), "content-type": "application/json"}
    for method, path in (("POST", "/v1/completions"), ("GET", "/nowhere"), ("GET", "/docs"), ("POST", "/tokenize")):
        answer = await server.http.request(method, path, headers=headers, content=b'{"x": 1}')
        assert answer.status_code < 500, path
