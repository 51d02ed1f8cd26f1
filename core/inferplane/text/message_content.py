"""The content of messages as templates expect it: plain text, or a list of parts. Renders nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import nodes

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence

ContentFormat = Literal["auto", "string", "openai"]

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that clients send a message's reasoning under; templates read the first or, some, the second."""


def detect_content_format(template: nodes.Template) -> Literal["string", "openai"]:
    """ "openai" for a template that goes through the parts of a message's content, else "string"."""
    aliases = {"content"} | {
        assignment.target.name
        for assignment in template.find_all(nodes.Assign)
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, frozenset())
    }
    loops = template.find_all(nodes.For)
    return "openai" if any(_is_content(loop.iter, frozenset(aliases)) for loop in loops) else "string"


def takes_text(template: nodes.Template) -> bool:
    """True for a template that asks whether something is a string: content may then be either."""
    return any(test.name == "string" for test in template.find_all(nodes.Test))


def _is_content(node: nodes.Node, aliases: frozenset[str]) -> bool:
    """message.content, message["content"], or an alias of it, through filters and conditions."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Const):
            return bool(node.arg.value == "content")
        return isinstance(node.arg, nodes.Slice) and _is_content(node.node, aliases)
    if isinstance(node, nodes.Name):
        return node.name in aliases
    if isinstance(node, nodes.Filter):
        return node.node is not None and _is_content(node.node, aliases)
    return False


def normalize_messages(
    messages: Sequence[dict[str, Any]], content_format: Literal["string", "openai"], keep_text: bool
) -> list[dict[str, Any]]:
    """Fresh messages for a template. `keep_text`: with "openai", text is left as text.

    Parts of type text are joined with newlines where the template takes text. A tool call's arguments become an object
    where they are JSON. Keys without a value go, as templates test for their presence. Raises InvalidValue for a
    message, a part or a role of the wrong kind.
    """
    return [_message(m, f"messages[{i}]", content_format, keep_text) for i, m in enumerate(messages)]


def _message(
    message: dict[str, Any], field: str, content_format: Literal["string", "openai"], keep_text: bool
) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidValue(field, type(message).__name__, "must be an object with a role and a content")
    if not isinstance(message.get("role"), str):
        raise InvalidValue(f"{field}.role", message.get("role"), "must be a string")
    result = {key: value for key, value in message.items() if value is not None}
    reasoning = next((result[key] for key in _REASONING if key in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, list):
        parts = [_part(part, f"{field}.content[{i}]") for i, part in enumerate(content)]
        content = parts if content_format == "openai" else "\n".join(part["text"] for part in parts)
    elif not isinstance(content, str):
        raise InvalidValue(f"{field}.content", type(content).__name__, "must be text or a list of parts")
    if content_format == "openai" and isinstance(content, str) and not keep_text:
        content = [{"type": "text", "text": content}]
    result["content"] = content
    if isinstance(calls := result.get("tool_calls"), list):
        result["tool_calls"] = [_tool_call(call) for call in calls]
    return result


def _part(part: object, field: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise InvalidValue(field, type(part).__name__, "must be an object with a type")
    kind = part.get("type", "text")
    # "refusal" and "thinking" parts are an assistant's text that clients send back.
    text = part.get(kind) if kind in ("refusal", "thinking") else part.get("text")
    if kind not in ("text", "input_text", "output_text", "refusal", "thinking") or not isinstance(text, str):
        raise InvalidValue(f"{field}.type", kind, "only parts of type text, with a text, are taken")
    return {"type": "text", "text": text}


def _tool_call(call: object) -> object:
    """OpenAI's clients send arguments as a string of JSON; templates print an object."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except ValueError:
            return call
    return {**call, "function": function}
