"""Hostile templates end soon, with an error for the client."""

from __future__ import annotations

import pytest

from inferplane.errors import InvalidValue
from inferplane.text import chat_template
from inferplane.text.chat_template import ChatTemplate

DOUBLING = "{%% set n = namespace(s='xxxxxxxx') %%}{%% for i in range(60) %%}{%% set n.s = %s %%}{%% endfor %%}"
GRID = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (GRID, "too long"),
        ("{% macro f(n) %}{% for i in range(2) %}{{ f(n - 1) if n }}{% endfor %}{% endmacro %}{{ f(60) }}", "too long"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(10**6) %}{% endfor %}", "Range too big"),
        ("{% for i in range(90000) %}{{ 'x' * 90000 }}{% endfor %}", "too long"),
        (DOUBLING % "n.s + n.s", "larger than"),
        (DOUBLING % "n.s ~ n.s", "larger than"),
        (DOUBLING % "[n.s, n.s] | join", "larger than"),
        (DOUBLING % "'%s%s' % (n.s, n.s)", "larger than"),
        (DOUBLING % "'{0}{0}'.format(n.s)", "larger than"),
        (DOUBLING % "''.join([n.s, n.s])", "larger than"),
        (DOUBLING % "n.s | replace('x', 'xx')", "larger than"),
        (DOUBLING % "n.s.replace('x', 'xx')", "larger than"),
        ("{{ 'x' * 10**9 }}", "larger than"),
        ("{{ [0] * 10**9 }}", "larger than"),
        ("{{ 9 ** 9 ** 9 }}", "number is above"),
        ("{{ 'x'.ljust(10**9) }}", "number is above"),
        ("{{ 'x' | center(10**9) }}", "number is above"),
        ("{{ '%999999999d' % 1 }}", "wide field"),
        ("{{ '{:999999999}'.format(1) }}", "wide field"),
        ("{{ '%*d' % (10**9, 1) }}", "number is above"),
        ("{{ '{:{}}'.format(1, '999999999') }}", "wide field"),
        ("{{ ('\t' * 10**5).expandtabs(10**6) }}", "larger than"),
        ("{{ ('a\n' * 10**5) | indent(10**6) }}", "larger than"),
        ("{{ ('a' * 10**5) | wordwrap(1, true, 'x' * 10**5) }}", "larger than"),
        ("{{ ('a' * 10**5).translate({97: 'b' * 10**6}) }}", "not allowed"),
        ("{{ range(10**5) | map('string') | map('center', 10**6) | join }}", "larger than"),
        ("{{ range(10**5) | list | tojson(indent=10**6) }}", "indent is above"),
        ("{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}", "bits"),
        ("{{ (999999 ** 999999) > 1 }}", "bits"),
        ("{{ lipsum(n=10**9) }}", "lipsum"),
        ("{{ [[1], [2]] | sum(start=[]) }}", "numbers only"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].a.b }}", "no attribute"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_refused(source: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2 if problem == "too long" else 60.0)
    template = ChatTemplate(source)
    with pytest.raises(InvalidValue, match=problem) as caught:
        template.render([{"role": "user", "content": "x"}])
    assert caught.value.field == "messages"


def test_ordinary_work_is_not_refused() -> None:
    source = (
        "{% for i in range(1000) %}{{ '%05d' % i }}{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [1, 2] | sum }}"
        "{{ '-'.join(['a', 'b']) }}{{ 'x' | center(3) }}{{ 'a' ~ 1 }}{{ '{:>4}'.format(i) }}{% endfor %}"
        "{{ [1, 2] | map('string') | join(', ') }}{{ 'a\nb' | indent }}{{ [1] | tojson(indent=4) }}"
    )
    text = ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert text.startswith("00000ababab10243a-b x a1   0")
    assert len(text) > 20_000
    assert text.endswith("1, 2a\n    b[\n    1\n]")


def test_a_template_that_is_too_long_or_too_deep_is_refused() -> None:
    for source in ("x" * 300_000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"):
        with pytest.raises(InvalidValue) as caught:
            ChatTemplate(source)
        assert caught.value.field == "chat_template"


def test_the_deadline_cannot_be_set_by_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.1)
    with pytest.raises(InvalidValue, match="too long"):
        ChatTemplate(GRID).render([{"role": "user", "content": "x"}], **{"render deadline": 1e18})
