"""Complete a few prompts in this process.

python examples/offline_generate.py [MODEL]
"""

import sys

from inferplane import LLM, SamplingParams


def main() -> None:
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    prompts = ["The capital of France is", "Water boils at", "Once upon a time"]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24))
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
