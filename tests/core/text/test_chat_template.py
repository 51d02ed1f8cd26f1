"""Rendered prompts against transformers' apply_chat_template, on templates of the families written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest

from inferplane.errors import InvalidValue
from inferplane.text.chat_template import ChatTemplate
from inferplane_api.checkpoint import CheckpointCard

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather <now> & "later" in Zürich',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER = {"role": "user", "content": "  Größe <b>&amp; 'quotes' \"double\"\n\ttab 你好 👩‍👩‍👧 "}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes. "},
        {"role": "user", "content": "Why?"},
    ],
    "answered": [USER, {"role": "assistant", "content": "\nIt is {{ 7 * 7 }}."}],
    "reasoning": [USER, {"role": "assistant", "content": "Yes.", "reasoning": "It is\nso."}],
    "wrong order": [USER, {"role": "user", "content": "Hello?"}],
    "tool": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "abc123def",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Zürich"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "abc123def", "content": '{"celsius": 21.5}'},
    ],
}


@pytest.fixture(scope="module")
def reference() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)


def parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def render_both(
    reference: Any, source: str, messages: list[dict[str, Any]], **options: Any
) -> tuple[str | None, str | None]:
    """(ours, transformers'), None where it refuses. A template that takes only parts gets parts in transformers."""
    template = ChatTemplate(source, TOKENS)
    theirs_in = messages if template.content_format == "string" or "is string" in source else parts(messages)
    try:
        theirs = reference.apply_chat_template(theirs_in, chat_template=source, tokenize=False, **options)
    except jinja2.TemplateError:
        theirs = None
    try:
        ours = template.render(messages, **options)
    except InvalidValue:
        ours = None
    return ours, theirs


@pytest.mark.parametrize("generation", [True, False], ids=["prompt", "plain"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(reference: Any, name: str, conversation: str, generation: bool) -> None:
    ours, theirs = render_both(
        reference, TEMPLATES[name], CONVERSATIONS[conversation], add_generation_prompt=generation
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ["llama3_tools", "mistral_tools", "qwen2_tools"])
def test_tools_equal_transformers(reference: Any, name: str) -> None:
    ours, theirs = render_both(
        reference, TEMPLATES[name], CONVERSATIONS["tool"], add_generation_prompt=True, tools=[WEATHER]
    )
    assert ours == theirs
    assert theirs is not None
    assert "get_weather" in theirs


def test_documents_and_variables_equal_transformers(reference: Any) -> None:
    documents = [{"title": "a<b", "text": "x"}, {"title": "c", "text": "y"}]
    ours, theirs = render_both(
        reference, TEMPLATES["command_r"], [USER], documents=documents, add_generation_prompt=True
    )
    assert ours == theirs
    assert "Document: 1" in (theirs or "")
    ours, theirs = render_both(
        reference, TEMPLATES["qwen3_thinking"], [USER], enable_thinking=False, add_generation_prompt=True
    )
    assert ours == theirs
    assert "<think>" in (theirs or "")


@pytest.mark.parametrize("end", ["It is", "It is ", " It is\n"])
@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "gemma3", "qwen2_tools", "zephyr", "vicuna"])
def test_continuing_the_final_message_equals_transformers(reference: Any, name: str, end: str) -> None:
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": end}]
    ours, theirs = render_both(
        reference, TEMPLATES[name], messages, add_generation_prompt=False, continue_final_message=True
    )
    assert ours == theirs
    assert theirs is not None
    assert theirs.rstrip().endswith("It is")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gemma3", "openai"), ("vision_parts", "openai")]
    + [(n, "string") for n in TEMPLATES if n not in ("gemma3", "vision_parts")],
)
def test_content_format_is_seen_in_the_template(name: str, expected: str) -> None:
    assert ChatTemplate(TEMPLATES[name]).content_format == expected


def test_parts_become_text_for_a_template_that_takes_text() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert "user\na\nb<|im_end|>" in ChatTemplate(TEMPLATES["chatml"]).render([message])


def test_content_format_can_be_set() -> None:
    source = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert ChatTemplate(source).render([{"role": "user", "content": "a"}]) == '"a"'
    forced = ChatTemplate(source, content_format="openai").render([{"role": "user", "content": "a"}])
    assert forced == '[{"type": "text", "text": "a"}]'


def test_tool_arguments_in_json_are_objects_for_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Zürich"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = ChatTemplate(TEMPLATES["qwen2_tools"]).render([USER, message])
    assert '{"name": "f", "arguments": {"city": "Zürich"}}' in text
    assert isinstance(call["function"], dict)
    assert call["function"]["arguments"] == '{"city": "Zürich"}', "the caller's message must not change"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        (
            [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[1].content[0].type",
        ),
    ],
)
def test_wrong_messages_are_named(messages: list[Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        ChatTemplate(TEMPLATES["chatml"]).render(messages)
    assert caught.value.field == field


def test_a_refusal_gives_the_template_s_own_words() -> None:
    with pytest.raises(InvalidValue, match="Conversation roles must alternate"):
        ChatTemplate(TEMPLATES["mistral"], TOKENS).render(CONVERSATIONS["wrong order"])


@pytest.mark.parametrize("source", ["{% for %}", "a\n{{ b", "{% endif %}"])
def test_a_template_that_is_wrong_is_refused_with_its_line(source: str) -> None:
    with pytest.raises(InvalidValue, match="line") as caught:
        ChatTemplate(source)
    assert caught.value.field == "chat_template"


def test_sources_of_the_template(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("file {{ messages[0].content }}")
    named = [
        {"name": "default", "template": "default"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }}"},
    ]
    messages = [{"role": "user", "content": "x"}]
    card = CheckpointCard(config={}, chat_template="card", tokenizer_config={"chat_template": named})

    def render(card: CheckpointCard, override: str | None = None, **options: Any) -> str:
        template = ChatTemplate.from_card(card, override)
        assert template is not None
        return template.render(messages, **options)

    assert render(card) == "card"
    assert render(card, str(file)) == "file x"
    assert render(card, "inline {{ messages[0].content }}") == "inline x"
    listed = CheckpointCard(config={}, tokenizer_config={"chat_template": named})
    assert render(listed) == "default"
    assert render(listed, tools=[WEATHER]) == "get_weather"
    assert ChatTemplate.from_card(CheckpointCard(config={})) is None
    with pytest.raises(InvalidValue, match="no such file"):
        ChatTemplate.from_card(card, str(tmp_path / "missing.jinja"))


def test_special_tokens_stored_as_objects_are_read() -> None:
    template = ChatTemplate(
        "{{ bos_token }}", {"bos_token": {"content": "<s>", "lstrip": False}, "add_bos_token": True}
    )
    assert template.render([USER]) == "<s>"


def test_generation_prompt_and_continuation_exclude_each_other() -> None:
    with pytest.raises(InvalidValue, match="add_generation_prompt"):
        ChatTemplate(TEMPLATES["chatml"]).render([USER], add_generation_prompt=True, continue_final_message=True)
