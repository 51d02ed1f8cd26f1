"""The page as any HTTP client sees it: headers, opt-out, keys, prefixes. What it does in a browser: tests/e2e."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from inferplane.server.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "a-key"


class Markup(HTMLParser):
    """Everything that a policy or a reader's tools care about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self._open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in self.inline else None

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inline[self._open].append(data)


def policy_of(answer: httpx.Response) -> dict[str, list[str]]:
    directives = [directive.split() for directive in answer.headers["content-security-policy"].split(";")]
    return {name: values for name, *values in directives}


async def test_the_page_is_one_small_file_that_asks_for_nothing_else(server: Any) -> None:
    answer = await server.http.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert len(answer.content) < 40_000
    markup = Markup(answer.text)
    for tag, attributes in markup.elements:
        for name in ("src", "href", "action", "srcset", "data"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    assert not re.search(r"@import|url\(", markup.inline["style"][0])


async def test_the_policy_lets_only_the_pages_own_script_and_style_run(server: Any) -> None:
    answer = await server.http.get("/")
    policy, markup = policy_of(answer), Markup(answer.text)
    assert policy["default-src"] == ["'none'"]
    for kind in ("script", "style"):
        (text,) = markup.inline[kind]
        digest = base64.b64encode(sha256(text.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == [f"'sha256-{digest}'"]
    assert policy["connect-src"] == ["'self'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert policy["trusted-types"] == ["'none'"], "no text of a model can become markup"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_every_control_has_a_name(server: Any) -> None:
    text = (await server.http.get("/")).text
    text = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    labelled = " ".join(re.findall(r"<label.*?</label>", text, flags=re.DOTALL))
    for tag, attributes in Markup(text).elements:
        if tag in ("input", "select", "textarea"):
            assert "aria-label" in attributes or f'id="{attributes.get("id")}"' in labelled or "name" in attributes
    assert all(re.sub(r"<.*?>", "", body).strip() for body in re.findall(r"<button.*?>(.*?)</button>", text))


async def test_head_and_other_methods(server: Any) -> None:
    head = await server.http.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert "content-security-policy" in head.headers
    assert (await server.http.post("/")).status_code == 405


async def test_it_can_be_left_out(make: Callable[..., Any]) -> None:
    server = make(disable_page=True)
    assert (await server.http.get("/")).status_code == 404
    assert "/" not in server.app.openapi()["paths"]
    assert (await make(disable_page=True, api_key=KEY).http.get("/")).status_code == 401


async def test_with_keys_the_page_is_open_and_nothing_that_it_asks_for(make: Callable[..., Any]) -> None:
    server = make(api_key=KEY)
    answer = await server.http.get("/")
    assert answer.status_code == 200
    assert KEY not in answer.text
    for path in ("/v1/models", "/server_info", "/startup", "/metrics", "/index.html"):
        assert (await server.http.get(path)).status_code == 401, path
    operation = server.app.openapi()["paths"]["/"]["get"]
    assert operation["security"] == []
    assert "401" not in operation["responses"]


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_behind_a_proxy_with_a_prefix(make: Callable[..., Any], keys: tuple[str, ...]) -> None:
    app = create_app(make(api_key=keys, root_path="/llm").service)
    transport = httpx.ASGITransport(app, root_path="/llm")
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        page = await client.get("/llm/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "/llm" not in page.text, "the same file everywhere: it finds its server by its own address"


async def test_the_file_is_in_the_wheel(
    repository: Path, install_wheel: Callable[[Path, Path], None], tmp_path: Path, server: Any
) -> None:
    install_wheel(repository / "core", tmp_path)
    packed = (tmp_path / "inferplane" / "server" / "page" / "index.html").read_text(encoding="utf-8")
    assert packed == (await server.http.get("/")).text
