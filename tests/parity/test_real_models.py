"""The two real models, read from their GGUF files, against transformers reading the same files, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from inferplane import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.models

NEW_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "Water boils at",
    "1, 1, 2, 3, 5, 8, 13,",
    "Translate to French: good morning ->",
]
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
    with LLM(model=str(path), dtype="float32", max_model_len=max(lengths) + NEW_TOKENS, max_logprobs=-1) as llm:
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
