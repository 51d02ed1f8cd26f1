"""A Jinja environment for templates and data that may be hostile: no escape, and an end to time and size.

Jinja's sandbox keeps a template from the interpreter's internals. This one also bounds what rendering may use: the
clock is looked at in every loop turn and call, and operations that make large values are refused before they are made.
Knows nothing about chats.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from jinja2.runtime import Context

MAX_CHARACTERS = 16 * 2**20
"""Of the text, and of any value on the way to it."""
MAX_NUMBER = 10**6
"""Of widths and counts."""
MAX_BITS = 4096
"""Of whole numbers that products and powers make."""
DEADLINE = "render deadline"
"""The variable with the time at which rendering must end. No template can name it: it has a space."""

MAX_INDENT = 100

_WIDE = re.compile(r"\d{6,}")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
"""A format whose width is an argument."""
_PLACES: dict[str, Callable[[str], int]] = {
    "expandtabs": lambda text: text.count("\t"),
    "indent": lambda text: len(text.splitlines()),
    "wordwrap": len,
}
"""Operations that put an argument's text, or as many spaces as it says, into a text: at how many places at most."""


class TemplateRefused(TemplateError):
    """The template itself called raise_exception: its message is for the client."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for a prompt it is its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """What `transformers` gives to chat templates, with bounds."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters = {name: _bounded_filter(name, function) for name, function in self.filters.items()}
        del self.globals["lipsum"]  # writes any length of text between two looks at the clock
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """As Jinja does, with a look at the clock in each loop turn, and `~` as a call."""
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(_call("tick", []), lineno=loop.lineno))
        _replace_concatenations(template)
        return template

    def tick(self) -> str:
        """Does nothing: `call`, which every call goes through, looks at the clock."""
        return ""

    def concatenate(self, *values: object) -> str:
        """The operator `~`."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Any call that a template makes."""
        if time.monotonic() > context.get(DEADLINE, float("inf")):
            raise SecurityError("rendering takes too long")
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            _check_text_operation(getattr(function, "__name__", ""), owner, args, kwargs)
        return _checked(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format and str.format_map, which the sandbox replaces by its own."""
        function = super().wrap_str_format(value)
        if function is None:
            return None
        template = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(template, (*args, *kwargs.values()), "{")
            return function(*args, **kwargs)

        return bounded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make large values."""
        if operator == "**":
            _check_numbers((left, right))
            _check_bits(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,), "%")
        elif operator == "*":
            _check_product(left, right)
        elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            _check_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


def _replace_concatenations(node: nodes.Node) -> None:
    for child in node.iter_child_nodes():
        _replace_concatenations(child)
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(node, field, _call("concatenate", value.nodes))
        elif isinstance(value, list):
            value[:] = [_call("concatenate", v.nodes) if isinstance(v, nodes.Concat) else v for v in value]


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skipped = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)  # keeps the mark that says which extra argument the filter gets
    def bounded(*args: Any, **kwargs: Any) -> Any:
        value, rest = args[skipped] if len(args) > skipped else None, args[skipped + 1 :]
        if name == "sum" and isinstance(value, (list, tuple)) and any(isinstance(v, (str, list, tuple)) for v in value):
            raise SecurityError("sum adds numbers only")
        if name == "join":
            value = _bounded_list(value)
            _check_join(rest[0] if rest else kwargs.get("d", ""), value)
            args = (*args[:skipped], value, *rest)
        elif isinstance(value, str):
            _check_text_operation(name, value, rest, kwargs)
        else:
            _check_numbers((*rest, *kwargs.values()))
        return _checked(function(*args, **kwargs))

    return bounded


def _check_text_operation(name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A method of str, or a filter of the same name, before it runs."""
    given = (*args, *kwargs.values())
    _check_numbers(given)
    texts = [a for a in given if isinstance(a, str)]
    if name == "translate":
        raise SecurityError("translate is not allowed")
    if name in _PLACES:
        widest = max((len(a) if isinstance(a, str) else a for a in given if isinstance(a, (str, int))), default=8)
        _check_size(len(text) + _PLACES[name](text) * widest)
    elif name == "replace" and len(texts) > 1:
        _check_size(len(text) + text.count(texts[0]) * len(texts[1]))
    elif name == "join" and args:
        _check_join(text, args[0])
    elif name in ("format", "format_map"):
        _check_format(text, (*args, *kwargs.values()), "{" if "{" in text else "%")


def _check_format(template: str, values: Iterable[object], mark: str) -> None:
    values = tuple(values)
    wide = [template, *(v for v in values if isinstance(v, str))] if _NESTED_FIELD.search(template) else [template]
    if any(map(_WIDE.search, wide)):
        raise SecurityError("a format asks for a very wide field")
    if "*" in template:
        _check_numbers(values)
    longest = max((len(v) for v in values if isinstance(v, (str, list, dict, tuple))), default=1)
    _check_size(len(template) + template.count(mark) * longest)


def _check_join(separator: object, items: object) -> None:
    if isinstance(items, (list, tuple)):
        _check_size(sum(len(i) if isinstance(i, str) else 1 for i in items) + len(items) * len(str(separator)))


def _bounded_list(items: object) -> object:
    """What a generator gives, as a list, as long as it stays small."""
    if isinstance(items, (str, list, tuple, dict)) or not isinstance(items, Iterable):
        return items
    taken, size = [], 0
    for item in items:
        taken.append(item)
        size += len(item) if isinstance(item, (str, list, tuple)) else 1
        _check_size(size)
    return taken


def _check_bits(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise SecurityError(f"a number has more than {MAX_BITS} bits")


def _check_product(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise SecurityError(f"a number has more than {MAX_BITS} bits")
    for sized, count in ((left, right), (right, left)):
        if isinstance(sized, (str, list, tuple)) and isinstance(count, int):
            _check_size(len(sized) * max(count, 0))


def _check_numbers(values: Iterable[object]) -> None:
    if any(isinstance(v, int) and abs(v) > MAX_NUMBER for v in values):
        raise SecurityError(f"a number is above {MAX_NUMBER}")


def _checked(value: Any) -> Any:
    if isinstance(value, (str, list, tuple, dict)):
        _check_size(len(value))
    return value


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"a value is larger than {MAX_CHARACTERS} characters")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML's escapes."""
    if isinstance(indent, int) and indent > MAX_INDENT:
        raise SecurityError(f"an indent is above {MAX_INDENT}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise TemplateRefused(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
