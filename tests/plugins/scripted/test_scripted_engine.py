"""The script through the real scheduler: the same answers however often requests are put back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from inferplane import LLM, SamplingParams
from inferplane_scripted.checkpoint import EOS, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("pages", [12, 200])
def test_a_small_pool_changes_no_answer(tmp_path: Path, pages: int) -> None:
    path = write_checkpoint(tmp_path / "model", max_position=64)
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"echo": True}, "prompts": {"1,2,3": [7, 8]}}))
    prompts = [[1, 2, 3], *([10 + i, 20 + i, 30 + i, 40 + i, 50 + i][: 1 + i % 5] for i in range(12))]
    llm = LLM(
        model=str(path),
        platform="scripted",
        platform_option={"script": str(script)},
        num_pages_override=pages,
        block_size=4,
        max_model_len=40,
    )
    with llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=20, logprobs=0), use_tqdm=False)
        stats = llm.stats()
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    assert answers[0] == [7, 8, EOS]
    for prompt, answer in zip(prompts[1:], answers[1:], strict=True):
        assert answer == [prompt[position % len(prompt)] for position in range(20)]
    assert (stats.num_preemptions > 0) == (pages == 12), "the small pool makes requests wait in the middle"
