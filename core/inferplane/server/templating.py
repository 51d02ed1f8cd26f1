"""From a conversation to the text of a prompt; knows the request's fields, and the template only by its `render`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplane.server.errors import bad_value
from inferplane.server.prompts import require_tokenizer
from inferplane.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext
    from inferplane.server.schema import Conversation, Message

_RESERVED = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
)
"""Names that template variables of a request may not take."""


def adds_generation_prompt(body: Conversation) -> bool:
    """True unless the client said no or wants the last message continued."""
    if body.add_generation_prompt is None:
        return not body.continue_final_message
    return body.add_generation_prompt


def render_conversation(context: ServerContext, body: Conversation) -> str:
    """The prompt's text. Raises ApiError 400, or InvalidValue from the template."""
    require_tokenizer(context, "messages")
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if taken := sorted(_RESERVED & variables.keys()):
        raise bad_value("chat_template_kwargs", f"{', '.join(taken)} cannot be set here")
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return _template(context, body).render(
        [message.model_dump(exclude_unset=True) for message in body.messages],
        add_generation_prompt=adds_generation_prompt(body),
        continue_final_message=bool(body.continue_final_message),
        documents=body.documents,
        **variables,
    )


def _template(context: ServerContext, body: Conversation) -> ChatTemplate:
    if body.chat_template is not None:
        if not context.server.trust_request_chat_template:
            problem = "this server takes no template from a request (start it with --trust-request-chat-template)"
            raise bad_value("chat_template", problem)
        card = context.prepared.plan.card
        return ChatTemplate(
            body.chat_template, card.tokenizer_config, context.prepared.config.model.chat_template_content_format
        )
    if context.prepared.chat_template is None:
        problem = "this model has no chat template; use /v1/completions, or start the server with --chat-template"
        raise bad_value("messages", problem, code="no_chat_template")
    return context.prepared.chat_template


def last_text(message: Message) -> str:
    """The text of a message's content."""
    content = message.content
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""
