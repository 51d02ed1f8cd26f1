"""A conversation to the text of a prompt, as the model's Jinja template says; knows no tokens and no server."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateSyntaxError

from inferplane.errors import InvalidValue
from inferplane.text.message_content import ContentFormat, detect_content_format, normalize_messages, takes_text
from inferplane.text.sandbox import DEADLINE, MAX_CHARACTERS, BoundedEnvironment, TemplateRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Template

    from inferplane_api.checkpoint import CheckpointCard

RENDER_SECONDS = 5.0
"""How long one rendering may take."""
MAX_TEMPLATE_CHARACTERS = 2**18

_CONTINUE = "\ue000continue here\ue000 "
"""Stands at the end of a message that is to be continued; the space at its end tells whether the template strips."""
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class ChatTemplate:
    """One template with the checkpoint's special tokens. Rendering is safe from several threads."""

    def __init__(
        self,
        source: str,
        tokenizer_config: dict[str, Any] | None = None,
        content_format: ContentFormat = "auto",
        tools_source: str | None = None,
    ) -> None:
        """`tools_source`: the template for requests with tools. Raises InvalidValue for a template that is wrong."""
        self.source = source
        self._variables = _special_tokens(tokenizer_config or {})
        self._plain = _Compiled(source, content_format)
        self._with_tools = _Compiled(tools_source, content_format) if tools_source else self._plain
        self.content_format = self._plain.content_format
        """"string" or "openai": what the template gets as content."""

    @classmethod
    def from_card(
        cls, card: CheckpointCard, override: str | None = None, content_format: ContentFormat = "auto"
    ) -> ChatTemplate | None:
        """The user's template (a file, or the template itself) or the checkpoint's; None where there is none.

        Raises InvalidValue naming chat_template when it cannot be read or is not valid.
        """
        if override is not None:
            return cls(load_template(override), card.tokenizer_config, content_format)
        named = _named_templates(card)
        source = named.get("default") or next(iter(named.values()), None)
        if source is None:
            return None
        return cls(source, card.tokenizer_config, content_format, named.get("tool_use"))

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: list[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. `variables` are the template's own, such as enable_thinking.

        Raises InvalidValue naming messages, chat_template or continue_final_message, with the template's own words
        where it refuses the conversation.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidValue("continue_final_message", True, "does not go with add_generation_prompt")
        if not messages:
            raise InvalidValue("messages", [], "must hold at least one message")
        compiled = self._with_tools if tools else self._plain
        prepared = compiled.prepare(messages)
        if continue_final_message:
            _mark_end(prepared[-1])
        text = compiled.render(
            prepared,
            {
                **self._variables,
                **variables,
                "tools": tools or None,
                "documents": documents or None,
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return _cut_at_mark(text) if continue_final_message else text


class _Compiled:
    """A template and what it expects."""

    def __init__(self, source: str, content_format: ContentFormat) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidValue("chat_template", f"{len(source)} characters", "is too long")
        environment = BoundedEnvironment()
        try:
            tree = environment.parse(source)
            self._template: Template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            line = source.splitlines()[error.lineno - 1 : error.lineno]
            raise InvalidValue(
                "chat_template", line[0].strip()[:200] if line else "", f"line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, ValueError, SyntaxError, MemoryError) as error:
            raise InvalidValue("chat_template", source[:80], f"cannot be compiled: {error}") from error
        self.content_format = detect_content_format(tree) if content_format == "auto" else content_format
        self._keep_text = content_format == "auto" and takes_text(tree)

    def prepare(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return normalize_messages(messages, self.content_format, self._keep_text)

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        chunks, size = [], 0
        deadline = time.monotonic() + RENDER_SECONDS
        refuse = functools.partial(InvalidValue, "messages", [message["role"] for message in messages[:20]])
        try:
            for chunk in self._template.generate({**variables, "messages": messages, DEADLINE: deadline}):
                size += len(chunk)
                if size > MAX_CHARACTERS or time.monotonic() > deadline:
                    raise refuse("the chat template makes too long a text of it, or takes too long")
                chunks.append(chunk)
        except InvalidValue:
            raise
        except TemplateRefused as error:
            raise refuse(f"the chat template refuses it: {error.message}") from error
        except Exception as error:  # a template is a program: any operation in it may fail
            raise refuse(f"the chat template fails on it: {type(error).__name__}: {error}") from error
        return "".join(chunks)


def load_template(value: str) -> str:
    """A template given as a file or as itself. Raises InvalidValue naming chat_template."""
    try:
        path = Path(value).expanduser()
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValue("chat_template", value, "is not a text file in UTF-8") from error
    except OSError:  # the template itself, too long for a file name
        pass
    # A template without a tag would say the same to every conversation: it is a file name with a mistake.
    if "{{" not in value and "{%" not in value:
        raise InvalidValue(
            "chat_template", value, "there is no such file, and it is not a template", remedy="give a Jinja file"
        )
    return value


def _named_templates(card: CheckpointCard) -> dict[str, str]:
    """Older checkpoints hold a list of templates with names."""
    if card.chat_template is not None:
        return {"default": card.chat_template}
    stored = card.tokenizer_config.get("chat_template")
    if isinstance(stored, str):
        return {"default": stored}
    if isinstance(stored, list):
        return {entry["name"]: entry["template"] for entry in stored}
    return {}


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for role in _TOKENS:
        token = config.get(f"{role}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[f"{role}_token"] = token
    return tokens


def _mark_end(message: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _CONTINUE
    else:
        last = content.pop() if content else {"type": "text", "text": ""}
        content.append({**last, "text": last["text"] + _CONTINUE})


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CONTINUE.strip())
    if at < 0:
        raise InvalidValue("continue_final_message", True, "the chat template does not print the final message")
    # A template that strips messages would have stripped the space before the mark too.
    return text[:at] if text.startswith(_CONTINUE, at) else text[:at].rstrip()
