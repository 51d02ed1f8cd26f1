"""Hostile requests: whatever a client sends, the answer is one that the API's document knows, and never a 5xx.

The slow variants send tens of thousands.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from inferplane.server.embedding_schema import EmbeddingBody, EmbeddingChatBody
from inferplane.server.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, TokenizeChatBody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MESSAGES = b'[{"role": "user", "content": "a"}]'
BODIES: dict[str, tuple[type[BaseModel], dict[str, bytes]]] = {
    "/v1/completions": (CompletionBody, {"prompt": b'"Hi"'}),
    "/v1/chat/completions": (ChatBody, {"messages": MESSAGES}),
    "/v1/completions/render": (CompletionBody, {"prompt": b'"Hi"'}),
    "/v1/chat/completions/render": (ChatBody, {"messages": MESSAGES}),
    "/invocations": (ChatBody, {"messages": MESSAGES}),
    "/tokenize": (TokenizeBody, {"prompt": b'"Hi"'}),
    "/tokenize ": (TokenizeChatBody, {"messages": MESSAGES}),
    "/detokenize": (DetokenizeBody, {"tokens": b"[72]"}),
}
SCALARS = [
    b"null", b"true", b"false", b"0", b"-1", b"1", b"2", b"-0.0", b"0.5", b"1.5", b"NaN", b"Infinity", b"-Infinity",
    b"1e999", b"-1e999", b"1e-999", b"1e308", b"2147483648", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551615", b"-9223372036854775809", b"9" * 400, b"-" + b"9" * 400, b"9" * 5000, b"1." + b"9" * 5000,
    b'""', b'"1"', b'"a"', rb'"\u0000"', rb'"\ud800"', rb'"\udc00\ud800"', b'"\xff"', b'"\xed\xa0\x80"',
    '"\u2028\u202e\U0010ffff"'.encode(), b'"' + b"a" * 20000 + b'"', rb'"{{ 1/0 }}"', rb'"<|im_end|>"',
]  # fmt: skip
NESTED = [
    b"[]", b"{}", b"[null]", b"[[]]", b"[[1]]", b'["a", 1]', b"[1e400]", b"[NaN]", b"[true]", b"[-1]", b"[1, 1]",
    b"[" * 150 + b"]" * 150, b'{"a":' * 150 + b"1" + b"}" * 150, b"[" * 100000, b"[" * 5000 + b"]" * 5000,
    b'{"": {"": null}}', b'{"a": NaN}', b'{"1": 1e999}', b'{"1": NaN}', b'{"-1": 1}', b'{"99999999999": 1}',
    '{"\u0661": 1}'.encode(), b'{"1": 1, "1": 2}', b'{"1": 9e400, "a": 1}', b"[" + b"1," * 3000 + b"1]",
    b"[" + b'"a",' * 3000 + b'"a"]', b'["a", "a", ""]', b'{"type": "json_object"}', b'{"include_usage": 1}',
    b'[{"role": "user"}]', b'[{"role": "user", "content": [{"type": "text"}]}]', b'[{"role": "", "content": "a"}]',
    b'[{"role": "user", "content": [{"type": "text", "text": "\\u0000"}]}]', b'[{"role": "a", "content": null}]',
    b'[{"role": "assistant", "content": "a", "tool_calls": 5}]', b'[{"role": "user", "content": "a", "x": [1e999]}]',
]  # fmt: skip
HOSTILE = SCALARS + NESTED


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


class Attack:
    """Sends on one event loop and looks at every answer."""

    def __init__(self, server: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._http: httpx.AsyncClient = server.http
        self.document = server.app.openapi()
        self.statuses: dict[int, int] = {}

    def request(self, method: str, path: str, **rest: Any) -> httpx.Response:
        return self.loop.run_until_complete(asyncio.wait_for(self._http.request(method, path, **rest), 20))

    def body(self, path: str, body: bytes) -> httpx.Response:
        """Assert that the answer is one of ours, whatever the body was."""
        path = path.strip()
        answer = self.request("POST", path, content=body, headers={"content-type": "application/json"})
        status = answer.status_code
        self.statuses[status] = self.statuses.get(status, 0) + 1
        assert status < 500, (path, body[:500], answer.text[:500])
        assert str(status) in self.document["paths"][path]["post"]["responses"], (path, body[:500], status)
        if answer.headers["content-type"].startswith("text/event-stream"):
            events = answer.text.split("\n\n")
            assert events[-1] == ""
            if events[-2] != "data: [DONE]":
                raise AssertionError((path, body[:500], events[-2]))
            return answer
        value = json.loads(answer.text, parse_constant=refuse_constant)
        if status != 200:
            assert set(value) == {"error"}
            assert set(value["error"]) == {"message", "type", "param", "code"}
            assert len(value["error"]["message"]) < 2000
        return answer


@pytest.fixture(scope="module")
def attack(make: Callable[..., Any]) -> Iterator[Attack]:
    switches = ("enable_tokenizer_info_endpoint", "disable_uvicorn_access_log", "trust_request_chat_template")
    server = make(**dict.fromkeys(switches, True))
    found = Attack(server)
    yield found
    found.loop.run_until_complete(server.http.aclose())
    found.loop.close()


def build(fields: dict[str, bytes]) -> bytes:
    return b"{" + b", ".join(b'"%s": %s' % (name.encode(), value) for name, value in fields.items()) + b"}"


async def test_the_attack_notices_a_failure(make: Callable[..., Any]) -> None:
    def attack_a_broken_server() -> None:
        server = make()
        server.engine.submit = None
        attack = Attack(server)
        attack.body("/tokenize", b'{"prompt": "Hi"}')
        with pytest.raises(AssertionError, match="internal error"):
            attack.body("/v1/completions", b'{"prompt": "Hi"}')
        attack.loop.close()

    await asyncio.to_thread(attack_a_broken_server)


@pytest.mark.parametrize(
    ("kind", "good"), [(EmbeddingBody, {"input": b'["Hi", "a"]'}), (EmbeddingChatBody, {"messages": MESSAGES})]
)
def test_every_field_of_an_embedding_with_every_hostile_value(
    embedder: Callable[..., Any], kind: type[BaseModel], good: dict[str, bytes]
) -> None:
    attack = Attack(embedder(matryoshka=(), disable_uvicorn_access_log=True, trust_request_chat_template=True))
    for field in kind.model_fields:
        for value in HOSTILE:
            attack.body("/v1/embeddings", build({**good, field: value}))
    assert set(attack.statuses) <= {200, 400, 404}
    assert min(attack.statuses[200], attack.statuses[400]) > 40
    attack.loop.close()


@pytest.mark.parametrize("path", sorted(BODIES.keys() - {"/invocations"}))
def test_every_field_with_every_hostile_value(attack: Attack, path: str) -> None:
    model, good = BODIES[path]
    attack.statuses.clear()
    for field in model.model_fields:
        for value in HOSTILE:
            attack.body(path, build({**good, field: value}))
    # A fuzz whose every request is refused, or accepted, tests nothing.
    assert attack.statuses[200] > 3
    assert attack.statuses[400] > 20


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams_with_hostile_values(attack: Attack, path: str) -> None:
    model, good = BODIES[path]
    for field in model.model_fields:
        for value in SCALARS:
            attack.body(path, build({**good, "stream": b"true", field: value}))


NO_REQUESTS = [
    b"", b" ", b"null", b"[]", b"1", b'"a"', b"{", b"}", b"{]", b'{"a"}', b"\x00", b"\xff\xfe\x7b\x00",
    b"\xef\xbb\xbf{}", b"{}" * 2, b'{"prompt": "a"', b'{"messages": [', b"[" * 10**6, b'{"a":' * 10**5, b'{"a": 1,}',
    b"{'a': 1}",
    b"\xf0\x28\x8c\x28", b'{"\\ud800": 1}', b'{"' + b"k" * 10**6 + b'": 1}', b'{"messages": 5, "prompt": "a"}',
    b"{" + b",".join(b'"k%d": 1' % number for number in range(5000)) + b"}",
    b'{"prompt": "a", "prompt": 5}', b'{"prompt": 5, "prompt": "a"}',
    b'{"model": "tiny\\u0000", "prompt": "a", "messages": []}', b'{"__class__": {}, "__init__": 1, "model_config": {}}',
    b'{"prompt": "a", "tokens": [1], "messages": [{"role": "user", "content": "a"}], "model_fields": 1}',
]  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_bodies_that_are_no_request(attack: Attack, path: str, body: bytes) -> None:
    attack.body(path, body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([2**63, -(2**70), 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def hostile_bodies(path: str) -> st.SearchStrategy[bytes]:
    """A good body with some fields replaced, and some of its bytes."""
    model, good = BODIES[path]
    encoded = JSON_VALUES.map(lambda value: json.dumps(value).encode())
    field = st.dictionaries(st.sampled_from(sorted(model.model_fields)), encoded | st.sampled_from(HOSTILE), max_size=4)
    whole = field.map(lambda fields: build({**good, **fields}))
    torn = st.tuples(whole, st.integers(0, 400), st.integers(0, 8), st.binary(max_size=8)).map(
        lambda parts: parts[0][: parts[1]] + parts[3] + parts[0][parts[1] + parts[2] :]
    )
    return whole | torn | st.binary(max_size=100)


def throw_hostile_bodies(attack: Attack, path: str, count: int) -> None:
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(hostile_bodies(path))
    def throw(body: bytes) -> None:
        attack.body(path, body)

    throw()


@pytest.mark.parametrize("path", BODIES)
def test_bodies_made_at_random(attack: Attack, path: str) -> None:
    throw_hostile_bodies(attack, path, 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", BODIES)
def test_thousands_of_bodies_made_at_random(attack: Attack, path: str) -> None:
    throw_hostile_bodies(attack, path, 4000)


def conform(attack: Attack, count: int) -> None:
    """What schemathesis makes of the document: every operation, with values that fit and that do not."""
    schema = schemathesis.openapi.from_dict(attack.document)
    done = 0
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and not operation.body:
                continue

            @settings(
                max_examples=count,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                derandomize=True,
                phases=[Phase.generate],
            )
            @given(operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                nonlocal done
                done += 1
                wanted = case.as_transport_kwargs(base_url="http://test")
                wanted["content"] = wanted.pop("data", None)
                # httpx sends no lone surrogates and no NaN; those have their own tests above.
                if "json" in wanted:
                    wanted["content"] = json.dumps(wanted.pop("json")).encode("utf-8", "surrogatepass")
                wanted.pop("cookies", None)
                method, url = wanted.pop("method"), wanted.pop("url")
                answer = attack.request(method, url, **{k: v for k, v in wanted.items() if v is not None})
                case.validate_response(answer, checks=CHECKS)

            send()
    assert done > 8 * count


def test_every_answer_is_as_documented(attack: Attack) -> None:
    conform(attack, 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_answer_is_as_documented_for_long(attack: Attack) -> None:
    conform(attack, 700)
