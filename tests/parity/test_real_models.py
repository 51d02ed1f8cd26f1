"""The two real models, read from their GGUF files, against transformers reading the same files, in float32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from inferplane import LLM, SamplingParams

pytestmark = pytest.mark.models

REPOSITORY = Path(__file__).resolve().parents[2]

NEW_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "Water boils at",
    "1, 1, 2, 3, 5, 8, 13,",
    "Translate to French: good morning ->",
]
DEQUANTIZED = {"weights": "dequantized"}
"""As transformers computes: packed weights are multiplied with rounded activations."""

PASSAGE = (
    "The lighthouse keeper wrote in his log every evening. He noted the wind, the height of the waves and the ships "
    "that passed, and he never missed a day. "
)


def long_prompts(lengths: tuple[int, int], tokenizer: Any) -> list[list[int]]:
    ids = tokenizer(PASSAGE * 60)["input_ids"]
    return [ids[:length] for length in lengths]


def score(model: Any, prompt: list[int], continuation: list[int]) -> torch.Tensor:
    """transformers' logits [tokens, vocabulary] of each token of the continuation, in one pass over the whole text."""
    logits = model(torch.tensor([prompt + continuation[:-1]])).logits
    return logits[0, len(prompt) - 1 :].float()


def check_model(path: Path, lengths: tuple[int, int]) -> None:
    """Greedy tokens are equal when each is transformers' most likely one after the same tokens: by induction over the
    position, which needs one pass a prompt where generating needs one a token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS] + long_prompts(lengths, tokenizer)
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": max(lengths) + NEW_TOKENS, "max_logprobs": -1}
    with LLM(model=str(path), platform_option=DEQUANTIZED, **settings) as llm:
        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=5)
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    for prompt, result in zip(prompts, results, strict=True):
        sequence = result.outputs[0]
        assert len(sequence.token_ids) == NEW_TOKENS
        with torch.inference_mode():
            logits = score(reference, prompt, sequence.token_ids)
        assert sequence.token_ids == logits.argmax(-1).tolist()
        truth = torch.log_softmax(logits, -1)
        for position, table in enumerate(sequence.logprobs or []):
            for token_id, entry in table.items():
                assert entry.logprob == pytest.approx(truth[position, token_id].item(), abs=2e-3)


def test_smollm2(smollm2_path: Path) -> None:
    check_model(smollm2_path, (200, 300))


def test_gemma3_beyond_its_window(gemma3_path: Path) -> None:
    check_model(gemma3_path, (600, 700))


@pytest.mark.parametrize(
    ("model", "dtype"), [("smollm2_path", "float32"), ("smollm2_path", "bfloat16"), ("gemma3_path", "bfloat16")]
)
def test_packed_weights_read_a_text_as_well_as_dequantized_ones(
    model: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    path, text = request.getfixturevalue(model), (REPOSITORY / "LICENSE").read_text(encoding="utf-8")[:9000]

    def perplexity(options: dict[str, str]) -> float:
        with LLM(model=str(path), dtype=dtype, max_model_len=2048, platform="cpu", platform_option=options) as llm:
            (result,) = llm.generate([text], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
        scores = [next(iter(token.values())).logprob for token in result.prompt_logprobs or [] if token]
        assert len(scores) > 1500
        return math.exp(-sum(scores) / len(scores))

    assert perplexity({}) == pytest.approx(perplexity(DEQUANTIZED), rel=0.005)
