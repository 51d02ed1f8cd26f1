"""The text that tells a person how to use a server that is ready."""

from __future__ import annotations


def ready_text(url: str, model: str, *, has_chat: bool) -> str:
    """A ready line, a curl call and an OpenAI-SDK example, ready to paste."""
    return _ready(url, model) + (_chat(url, model) if has_chat else _completion(url, model))


def _ready(url: str, model: str) -> str:
    return f"\nReady: {model} on {url}/v1   (Ctrl-C stops)\n\n"


def _chat(url: str, model: str) -> str:
    return f"""curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
  "model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}], "max_tokens": 64}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "What is the capital of France?"}}], max_tokens=64)
print(answer.choices[0].message.content)
"""


def _completion(url: str, model: str) -> str:
    return f"""curl {url}/v1/completions -H 'Content-Type: application/json' -d '{{
  "model": "{model}", "prompt": "The capital of France is", "max_tokens": 32}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
print(client.completions.create(model="{model}", prompt="The capital of France is", max_tokens=32).choices[0].text)
"""
