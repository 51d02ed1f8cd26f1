"""Stream a chat answer from a running server, with the official client.

inferplane serve &
python examples/chat_stream.py "What is the capital of Japan?" [http://127.0.0.1:8000/v1]
"""

import sys

from openai import OpenAI


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "What is the capital of Japan?"
    client = OpenAI(base_url=sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8000/v1", api_key="none")
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        max_tokens=64,
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
