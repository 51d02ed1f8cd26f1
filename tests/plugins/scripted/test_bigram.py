"""The bigram model on the real runner and sampler: its table is the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from inferplane import LLM, SamplingParams
from inferplane_scripted.checkpoint import VOCAB_SIZE, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def test_greedy_tokens_and_logprobs_follow_the_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
    path = write_checkpoint(tmp_path / "bigram", table=table, max_position=64)
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=3, prompt_logprobs=0, ignore_eos=True)
    with LLM(model=str(path), platform="reference", dtype="float32") as llm:
        (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    scores = table.astype(np.float64)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    (sequence,) = output.outputs
    expected, token = [], 7
    for _ in range(12):
        token = int(table[token].argmax())
        expected.append(token)
    assert list(sequence.token_ids) == expected
    assert sequence.logprobs is not None
    for before, after, entry in zip([7, *expected], expected, sequence.logprobs, strict=False):
        top = [int(i) for i in np.argsort(-scores[before])[:3]]
        assert sorted(entry) == sorted(top)
        assert entry[after].logprob == pytest.approx(scores[before, after], abs=1e-4)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1][6].logprob == pytest.approx(scores[5, 6], abs=1e-4)
