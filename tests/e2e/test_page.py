"""The page at `/` in a headless browser, against servers on the scripted platform: what a reader sees and does."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

KEY = "a-secret"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> **not bold** & done"
HOSTILE_NAME = "<b onmouseover=alert(1)>second</b>"
SLOW = 20.0
"""Seconds in which whatever is waited for must have come; a loaded machine needs some."""
# Nothing that a browser does beside showing the page: no look-ups, no updates, no first-run pages.
_ARGUMENTS = [
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


def chat_ids(prompt: str) -> str:
    """How the script names a conversation of one message."""
    return ",".join(map(str, [257, *f"user\n{prompt}".encode(), 258, 10, 257, *b"assistant\n"]))


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (requirements-dev.txt)")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    with api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium on this machine: install Debian's chromium, or run `playwright install chromium`")
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(served: Callable[..., Any], scripted_model: Path) -> Iterator[str]:
    """A server with a chat template, two names and no key; it writes one token every 5 ms."""
    script = {
        "default": {"repeat": 97},
        "prompts": {chat_ids("hostile"): list(HOSTILE.encode()), chat_ids("short"): list(b"Hi!\nYou.")},
        "delay": 0.005,
    }
    with served(scripted_model, script, "--served-model-name", "scripted", HOSTILE_NAME) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def locked_url(served: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a key and a prefix, whose model has no chat template."""
    from inferplane_scripted.checkpoint import write_checkpoint

    model = write_checkpoint(tmp_path_factory.mktemp("base") / "model", chat_template=None)
    script = {"default": list(b" upon a time")}
    with served(model, script, "--api-key", KEY, "--root-path", "/llm") as server:
        yield server.wait_ready().removesuffix("/llm")


class Reader:
    """Somebody who looks at the page, and everything that the browser complained about meanwhile."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(SLOW * 1000)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)

    def later(self, seconds: float) -> None:
        """Let the page believe that time has passed; needs `page.clock.install()` before it is opened."""
        self.page.clock.fast_forward(int(seconds * 1000))

    def open(self, url: str, state: str | None = "good") -> Reader:
        self.page.goto(url)
        if state is not None:
            self.page.wait_for_selector(f"#health[data-state={state}]")
        return self

    def ask(self, prompt: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(prompt)
        self.page.keyboard.press("Enter")

    def last(self, part: str, waits: bool = True) -> str:
        """The text of the last answer's `words`, `facts` or `problem`."""
        item = self.page.locator("#log li").last
        if waits:
            item.locator(".again").wait_for()
        return item.locator(f".{part}").inner_text()


@pytest.fixture
def open_reader(browser: Browser) -> Iterator[Callable[..., Reader]]:
    contexts = []

    def make(**settings: Any) -> Reader:
        contexts.append(browser.new_context(locale="de-DE", **settings))
        return Reader(contexts[-1].new_page())

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def reader(open_reader: Callable[..., Reader]) -> Reader:
    return open_reader()


def answers(status: int, body: Any, **headers: str) -> Callable[[Route], None]:
    """What the server would say, said by the browser's network layer."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/event-stream" if isinstance(body, str) else "application/json"
    return lambda route: route.fulfill(status=status, body=text, headers={"content-type": kind, **headers})


def test_a_conversation(reader: Reader, url: str) -> None:
    page = reader.open(url).page
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Max tokens").fill("5")
    with page.expect_request("**/v1/chat/completions") as first:
        reader.ask("one")
    assert first.value.post_data_json == {
        "model": "scripted",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.25,
        "max_tokens": 5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}],
    }
    assert reader.last("words") == "aaaaa"
    facts = reader.last("facts")
    assert re.match(r"\d+ prompt tokens, 5 generated", facts)
    assert "ended at the token limit" in facts
    (speed,) = re.findall(r"([\d.,]+) tokens/s", facts)
    assert float(speed.replace(",", "")) > 0
    with page.expect_request("**/v1/chat/completions") as second:
        reader.ask("two\nlines")
    assert [(message["role"], message["content"]) for message in second.value.post_data_json["messages"]] == [
        ("system", "Be brief."), ("user", "one"), ("assistant", "aaaaa"), ("user", "two\nlines"),
    ]  # fmt: skip
    reader.last("words")
    page.get_by_role("button", name="New chat").click()
    assert page.locator("#log li").count() == 0
    assert reader.complaints == []


def test_settings_that_are_empty_are_the_servers_to_choose(reader: Reader, url: str) -> None:
    page = reader.open(url).page
    assert page.get_by_label("Temperature").get_attribute("placeholder") == "default 1"
    with page.expect_request("**/v1/chat/completions") as request:
        reader.ask("short")
    assert not {"temperature", "max_tokens"} & request.value.post_data_json.keys()
    assert reader.last("words") == "Hi!\nYou.", "line breaks are shown"
    page.get_by_label("Temperature").fill("7")
    reader.ask("more")
    assert page.evaluate("document.activeElement.id") == "temperature"
    assert page.locator("#log li").count() == 2, "nothing is sent with a value that cannot be used"


def test_stop_ends_the_request_and_keeps_what_came(reader: Reader, url: str) -> None:
    page = reader.open(url).page

    def aborted() -> float:
        text = httpx.get(url + "/metrics").text
        return float(re.findall(r'inferplane:request_success_total\{.*"abort".*\} (\S+)', text)[0])

    for stop in (lambda: page.get_by_role("button", name="Stop").click(), lambda: page.keyboard.press("Escape")):
        before = aborted()
        reader.ask("endless")
        page.wait_for_selector("#log li:last-child .words:has-text('aaa')")
        stop()
        assert "stopped" in reader.last("facts")
        words = reader.last("words")
        assert set(words) == {"a"}
        _, generated, *_ = numbers(reader.last("facts"))
        assert generated == len(words), "counted without the usage that ends a stream"
        for _ in range(200):
            if aborted() > before:
                break
            page.wait_for_timeout(50)
        else:
            raise AssertionError("the engine still writes")
        assert page.evaluate("document.activeElement.id") == "prompt"
    assert reader.complaints == []


def test_what_a_model_writes_is_text(reader: Reader, url: str) -> None:
    page = reader.open(url).page
    reader.ask("hostile")
    assert reader.last("words") == HOSTILE
    assert page.locator("#log img, #log script, #log b, #log strong").count() == 0
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Model", exact=True).select_option(HOSTILE_NAME)
    with page.expect_request("**/v1/chat/completions") as request:
        reader.ask("hostile")
    assert request.value.post_data_json["model"] == HOSTILE_NAME
    assert reader.last("words") == HOSTILE
    assert page.locator("#log h2").last.inner_text() == HOSTILE_NAME
    page.route("**/v1/chat/completions", answers(400, {"error": {"message": HOSTILE, "code": "x"}}))
    reader.ask("hostile")
    assert reader.last("problem") == HOSTILE + "."
    assert page.locator("#log img, #log script, #log b").count() == 0
    assert page.title() == "Inferplane"


def test_the_policy_holds_in_a_browser(reader: Reader, url: str) -> None:
    page = reader.open(url).page
    refused = "() => { try { document.body.innerHTML = '<p>x</p>'; return false } catch { return true } }"
    assert page.evaluate(refused), "the browser refuses markup made of text"
    page.evaluate(
        "() => { const s = document.createElement('style'); s.append('body{display:none}'); document.head.append(s) }"
    )
    assert page.locator("body").is_visible()
    elsewhere = "() => fetch('http://127.0.0.1:9/').then(() => '', (error) => String(error))"
    assert "TypeError" in page.evaluate(elsewhere)
    assert any("connect-src" in line for line in reader.complaints)
    framed = page.context.new_page()
    framed.set_content(f'<iframe src="{url}/"></iframe>')
    framed.wait_for_timeout(300)
    assert framed.frames[1].query_selector("#prompt") is None


def test_errors_are_told_in_words(reader: Reader, url: str) -> None:
    page = reader.open(url).page
    page.get_by_label("Max tokens").fill("9999999")
    reader.ask("short")
    assert reader.last("problem").startswith("max_tokens=9999999: ")
    page.get_by_label("Max tokens").fill("")
    chunk = 'data: {"choices":[{"delta":{"content":"par"}}]}\n\n'
    failure = 'data: {"error":{"message":"the engine is gone","code":"engine_dead"}}\n\ndata: [DONE]\n\n'
    full = {"error": {"message": "too much is waiting", "code": "rate_limit_exceeded"}}
    cases: list[tuple[Callable[[Route], None], str, str]] = [
        (answers(429, full, **{"retry-after": "7"}), "Too much is waiting. Try again in 7 s.", ""),
        (answers(502, "<h1>Bad gateway</h1>"), "The server answered 502 Bad Gateway.", ""),
        (answers(200, chunk + failure), "The engine is gone.", "par"),
        (answers(200, chunk), "The connection ended before the answer was complete.", "par"),
        (lambda route: route.abort(), "The server cannot be reached.", ""),
    ]
    for behave, problem, words in cases:
        page.route("**/v1/chat/completions", behave)
        reader.ask("short")
        assert (reader.last("problem"), reader.last("words", waits=False)) == (problem, words)
        page.unroute("**/v1/chat/completions")
    page.get_by_label("Max tokens").fill("3")
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Try again").click()
    sent = [message["content"] for message in request.value.post_data_json["messages"]]
    assert sent == ["short", "par", "short", "par", "short"], "questions without an answer are left out"
    reader.last("facts")
    assert page.locator("#log li").last.locator(".problem").count() == 0


def test_the_state_of_the_server(reader: Reader, url: str) -> None:
    reader.page.clock.install()
    page = reader.open(url).page
    assert page.locator("#health").inner_text() == "Ready"
    info = httpx.get(url + "/server_info").json()
    facts = page.locator("#facts").inner_text()
    for fact in (
        "ScriptedBigramForCausalLM",
        "scripted, script",
        "bfloat16",
        f"{info['capacity']['kv_tokens']:,} tokens",
    ):
        assert fact in facts
    page.locator("#selection > summary").click()
    shown = page.locator("#decisions").inner_text()
    for decision in info["selection"]["decisions"]:
        assert decision["chosen"] in shown
    page.locator("#start > summary").click()
    phases = {phase["phase"] for phase in info["timeline"]} | {phase["phase"] for phase in info["engine_timeline"]}
    assert set(page.locator("#phases th").all_inner_texts()) == phases
    reader.later(5)
    page.locator("#rate:has-text('0.0 tokens/s')").wait_for()
    # Two engines, which together make 90 tokens from one look to the next.
    looks = iter(range(10**6))

    def grown(route: Route) -> None:
        generated = 30 * next(looks)
        route.fulfill(
            body=f'inferplane:generation_tokens_total{{model_name="a}} b",engine="0"}} {generated}.0\n'
            f'inferplane:generation_tokens_total{{model_name="a}} b",engine="1"}} {2 * generated}.0\n'
            'inferplane:num_requests_running{engine="0"} 3.0\ninferplane:num_requests_running{engine="1"} 4.0\n'
            'inferplane:num_requests_waiting{engine="0"} 1200.0\ninferplane:kv_cache_usage_perc{engine="0"} 0.375\n'
        )

    page.route("**/metrics", grown)
    reader.later(5)
    page.locator("#running:has-text('7')").wait_for()
    reader.later(2)
    page.locator("#rate:not(:has-text('0.0 tokens/s'))").wait_for()
    (rate,) = numbers(page.locator("#rate").inner_text())
    assert 0 < rate <= 90 / 2, "looks are at least two seconds apart while there is work"
    assert page.locator("#running").inner_text() == "7"
    assert page.locator("#waiting").inner_text() == "1,200"
    meter = page.get_by_role("meter", name="KV cache in use")
    assert meter.get_attribute("aria-valuenow") == "37.5"
    assert page.locator("#graph polyline").get_attribute("points")
    page.route("**/health", lambda route: route.abort())
    reader.later(2)
    page.wait_for_selector("#health[data-state=bad]")
    assert page.locator("#health").inner_text() == "The server cannot be reached."
    assert page.locator("#running").inner_text() == "–", "old numbers are not shown as if they were new"
    assert [line for line in reader.complaints if "ERR_FAILED" not in line] == []


def test_a_start_from_its_first_moment(reader: Reader, served: Callable[..., Any], scripted_model: Path) -> None:
    with served(scripted_model, {"default": list(b"Hi!"), "load_seconds": 4.0}) as server:
        url = server.wait_listening()
        reader.open(url, "busy")
        assert reader.page.locator("#health").inner_text().startswith("Starting: ")
        reader.page.wait_for_selector("#health[data-state=good]")
        reader.ask("hello")
        assert reader.last("words") == "Hi!"
    with served(scripted_model, {"load_seconds": 4.0}, "--disable-page") as server:
        assert httpx.get(server.wait_listening() + "/").status_code == 503


def test_a_server_that_computes_embeddings(reader: Reader, url: str) -> None:
    def pooling(route: Route) -> None:
        info = httpx.get(url + "/server_info").json()
        (setting,) = [setting for setting in info["selection"]["settings"] if setting["path"] == "model.runner"]
        setting["value"] = "pooling"
        route.fulfill(json=info)

    reader.page.route("**/server_info", pooling)
    page = reader.open(url).page
    assert "computes embeddings" in page.locator("#mode-note").inner_text()
    assert page.locator("#prompt").is_disabled()


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        ({"error": {"message": "x", "code": "engine_starting"}, "startup": {"phase": "weights", "share": 0.4}}, "busy",
         "Starting: weights 40 %"),
        ({"error": {"message": "the engine is being started again", "code": "engine_starting"}}, "busy", "Starting"),
        ({"error": {"message": "the engine is gone: see abc", "code": "engine_dead"}}, "bad",
         "The engine is gone: see abc."),
    ],
)  # fmt: skip
def test_an_engine_that_is_not_well(reader: Reader, url: str, body: Any, state: str, words: str) -> None:
    reader.page.clock.install()
    reader.page.route("**/health", answers(503, body))
    reader.open(url, state)
    assert reader.page.locator("#health").inner_text() == words
    reader.page.unroute("**/health")
    reader.later(5)
    reader.page.wait_for_selector("#health[data-state=good]")
    assert reader.page.locator("#facts dt").count() > 0, "what could not be asked before is asked now"


def test_a_key_and_a_base_model_behind_a_prefix(open_reader: Callable[..., Reader], locked_url: str) -> None:
    reader = open_reader()
    page, asked = reader.page, []
    page.clock.install()

    def proxy(route: Route) -> None:
        asked.append((route.request.url, route.request.headers.get("authorization")))
        route.continue_(url=route.request.url.replace("/llm", "", 1))

    page.route(re.compile(re.escape(locked_url) + "/llm(/.*)?$"), proxy)
    page.route(re.compile(re.escape(locked_url) + "/(?!llm)"), lambda route: route.abort())
    reader.open(locked_url + "/llm", state=None)
    dialog = page.get_by_role("dialog", name="API key")
    dialog.wait_for()
    assert {key for _, key in asked} == {None}
    dialog.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    dialog.get_by_role("alert").wait_for()
    assert dialog.get_by_role("alert").inner_text() == "The server does not know this key."
    dialog.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("#health[data-state=good]")
    assert not dialog.is_visible()
    # A base model: text is continued, and the page says why.
    assert page.get_by_label("Complete text").is_checked()
    assert not page.get_by_label("System prompt").is_visible()
    assert "no chat template" in page.locator("#mode-note").inner_text()
    with page.expect_request("**/v1/completions") as request:
        page.get_by_label("Text to complete").fill("Once")
        page.keyboard.press("Enter")
    assert (locked_url + "/llm/v1/completions", f"Bearer {KEY}") in asked
    assert request.value.post_data_json["prompt"] == "Once"
    assert reader.last("words") == " upon a time"
    # Where the key is: in this tab, and nowhere else.
    assert page.evaluate("Object.values(sessionStorage)") == [KEY]
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert KEY not in page.content() + page.url
    page.reload()
    page.wait_for_selector("#health[data-state=good]")
    page.get_by_role("button", name="API key").click()
    page.get_by_role("button", name="Forget").click()
    dialog.wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    dialog.get_by_role("button", name="Cancel").click()
    num_asked = len(asked)
    reader.later(5)
    while len(asked) < num_asked + 2:
        page.wait_for_timeout(20)
    page.wait_for_selector("#health:has-text('An API key is needed')")
    assert not dialog.is_visible(), "who said no is not asked again"


def test_without_a_mouse(reader: Reader, url: str) -> None:
    page = reader.open(url).page
    seen = []
    for _ in range(24):
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) != "none" or seen[-1] == "BODY", f"{seen[-1]}: the focus is seen"
        page.keyboard.press("Tab")
    assert seen[0] == "prompt"
    for control in ("send", "system", "temperature", "max-tokens", "model", "clear", "toggle", "scroll"):
        assert control in seen, control
    tree = page.locator("body").aria_snapshot()
    assert not re.search(r"- (button|textbox|combobox|spinbutton|radio)( \[.*\])?$", tree, re.MULTILINE), tree


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_and_large_windows(open_reader: Callable[..., Reader], url: str, scheme: str) -> None:
    reader = open_reader(color_scheme=scheme, viewport={"width": 360, "height": 640})
    page = reader.open(url).page
    red, *_ = numbers(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (red > 200) == (scheme == "light")
    assert not page.locator("#side").is_visible()
    page.get_by_role("button", name="Settings").click()
    assert page.locator("#side").is_visible()
    assert not page.locator("#prompt").is_visible()
    for width in (320, 360, 800, 1600):
        page.set_viewport_size({"width": width, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
