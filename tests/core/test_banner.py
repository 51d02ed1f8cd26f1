"""The examples that a ready server prints work as they stand."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from inferplane.banner import ready_text, socket_text

URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("has_chat", [False, True])
def test_the_examples_carry_a_key_where_one_is_needed(has_chat: bool, has_key: bool) -> None:
    text = ready_text(URL, "m", has_chat=has_chat, has_key=has_key)
    curl, python = re.search(r"^curl .*?\}'$", text, re.DOTALL | re.MULTILINE), text[text.index("from openai") :]
    words = shlex.split(curl[0])
    assert json.loads(words[-1])["model"] == "m"
    assert words[1] == f"{URL}/v1/" + ("chat/completions" if has_chat else "completions")
    assert ("Authorization: Bearer $OPENAI_API_KEY" in words) is has_key
    assert ("api_key=" in python) is not has_key
    compile(python, "example", "exec")


def test_a_model_that_embeds_is_asked_for_vectors() -> None:
    text = ready_text(URL, "m", has_chat=True, embeds=True)
    curl, python = re.search(r"^curl .*?\}'$", text, re.DOTALL | re.MULTILINE), text[text.index("from openai") :]
    assert curl is not None
    words = shlex.split(curl[0])
    assert words[1] == f"{URL}/v1/embeddings"
    assert json.loads(words[-1])["input"]
    compile(python, "example", "exec")


def test_a_socket_is_no_url() -> None:
    text = socket_text("/run/my server/s.sock", "m")
    assert "Ready: m on unix:/run/my server/s.sock" in text
    assert shlex.split(text.splitlines()[-1])[2] == "/run/my server/s.sock"
