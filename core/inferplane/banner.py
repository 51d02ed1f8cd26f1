"""The text that tells a person how to use a server that is ready."""

from __future__ import annotations

KEY_VARIABLE = "OPENAI_API_KEY"
"""Where the examples look for the key of a server that has one: the key itself is not printed."""


def ready_text(url: str, model: str, *, has_chat: bool, has_key: bool = False, embeds: bool = False) -> str:
    """A ready line, a curl call and an OpenAI-SDK example, ready to paste."""
    header = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if has_key else ""
    # The client reads the variable by itself.
    client = f'OpenAI(base_url="{url}/v1")' if has_key else f'OpenAI(base_url="{url}/v1", api_key="none")'
    note = f"The examples take one of the keys from the variable {KEY_VARIABLE}.\n\n" if has_key else ""
    example = _embedding if embeds else _chat if has_chat else _completion
    return _ready(url, model) + note + example(url, model, header, client)


def socket_text(path: str, model: str) -> str:
    """A ready line and a curl call for a server on a Unix socket, which has no URL."""
    return (
        f"\nReady: {model} on unix:{path}   (Ctrl-C stops)\n\ncurl --unix-socket '{path}' http://localhost/v1/models\n"
    )


def _ready(url: str, model: str) -> str:
    return f"\nReady: {model} on {url}/v1   (Ctrl-C stops)\n\n"


def _chat(url: str, model: str, header: str, client: str) -> str:
    return f"""curl {url}/v1/chat/completions -H 'Content-Type: application/json'{header} -d '{{
  "model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of Japan?"}}],
  "max_tokens": 64, "temperature": 0}}'

from openai import OpenAI
client = {client}
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "What is the capital of Japan?"}}], max_tokens=64,
    temperature=0)
print(answer.choices[0].message.content)
"""


def _embedding(url: str, model: str, header: str, client: str) -> str:
    return f"""curl {url}/v1/embeddings -H 'Content-Type: application/json'{header} -d '{{
  "model": "{model}", "input": ["The capital of France is Paris.", "Cats purr."]}}'

from openai import OpenAI
client = {client}
answer = client.embeddings.create(model="{model}", input=["The capital of France is Paris.", "Cats purr."])
print(len(answer.data), len(answer.data[0].embedding))
"""


def _completion(url: str, model: str, header: str, client: str) -> str:
    return f"""curl {url}/v1/completions -H 'Content-Type: application/json'{header} -d '{{
  "model": "{model}", "prompt": "The capital of France is", "max_tokens": 32}}'

from openai import OpenAI
client = {client}
print(client.completions.create(model="{model}", prompt="The capital of France is", max_tokens=32).choices[0].text)
"""
