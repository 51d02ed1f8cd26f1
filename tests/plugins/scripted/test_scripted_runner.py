"""The scripted platform by itself: positions, preemption, log-probabilities and faults, and what it imports."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from inferplane_api.errors import InferplaneError, InvalidValue
from inferplane_api.kv import KVGeometry
from inferplane_api.platform import PlatformContext
from inferplane_api.pooling import PoolingParams
from inferplane_api.runner import Runner, RunnerContext, RunnerLimits
from inferplane_api.sampling import SamplingParams
from inferplane_api.spec import DeviceInfo, HostInfo, ProbeState
from inferplane_api.step import NewRequest, StepPlan
from inferplane_scripted.checkpoint import EOS, SPECIAL_TOKENS, VOCAB_SIZE, byte_tokenizer, write_checkpoint
from inferplane_scripted.describe import describe
from inferplane_scripted.descriptor import MODEL, PLATFORM, probe
from inferplane_scripted.platform import ScriptedPlatform

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 300


def make_runner(tmp_path: Path, script: dict[str, Any] | None) -> Runner:
    path = ""
    if script is not None:
        file = tmp_path / "script.json"
        file.write_text(json.dumps(script))
        path = str(file)
    config = {"vocab_size": VOCAB, "max_position_embeddings": 64}
    context = RunnerContext(
        checkpoint=None,
        model=describe(config),
        geometry=KVGeometry(page_bytes=1, groups=(), block_size=16),
        limits=RunnerLimits(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=64),
        dtype="float32",
        options={"script": path, "delay": 0.0, "pages": 100},
        progress=lambda phase, share: None,
    )
    runner = ScriptedPlatform(PlatformContext(device=DeviceInfo(), options=context.options)).create_runner(context)
    runner.load()
    runner.warmup()
    return runner


def new(slot: int, tokens: list[int], prompt: int | None = None, **params: Any) -> NewRequest:
    return NewRequest(
        slot=slot,
        request_id=f"r{slot}",
        token_ids=tokens,
        num_prompt_tokens=len(tokens) if prompt is None else prompt,
        params=SamplingParams(**params),
        seed=0,
        eos_token_ids=(EOS,),
    )


def step(runner: Runner, **plan: Any) -> Any:
    handle = runner.launch(StepPlan(step_id=1, **plan))
    runner.sample(handle, None)
    return runner.collect(handle)


def one(start: int, count: int, **plan: Any) -> dict[str, Any]:
    return {"slots": [0], "starts": [start], "counts": [count], "sample_rows": [0], **plan}


def test_prescribed_tokens_then_eos(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, {"prompts": {"1,2,3": [104, 105]}, "default": {"count_from": 298}})
    assert step(runner, **one(0, 3, added=[new(0, [1, 2, 3])])).tokens == [[104]]
    assert step(runner, **one(3, 1)).tokens == [[105]]
    assert step(runner, **one(4, 1)).tokens == [[EOS]]
    assert step(runner, **one(0, 1, removed=[0], added=[new(0, [9])])).tokens == [[298]]
    assert [step(runner, **one(at, 1)).tokens for at in (1, 2)] == [[[299]], [[0]]]


def test_a_pooled_prompt_gives_its_tokens_over_the_vocabulary(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, None)
    pooling = PoolingParams(pooling_type="MEAN", dimensions=4)
    added = [msgspec.structs.replace(new(0, [3, 6, 9], max_tokens=0), pooling=pooling)]
    assert step(runner, **one(0, 2, added=added, sample_rows=[])).pooled is None
    result = step(runner, **one(2, 1, sample_rows=[]))
    assert result.pooled == {0: [3 / VOCAB, 6 / VOCAB, 9 / VOCAB, 3 / VOCAB]}
    assert result.tokens == []


def test_a_preempted_request_goes_on_where_it_was(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, None)
    tokens = [5, 6]
    first = step(runner, **one(0, 2, added=[new(0, tokens)])).tokens[0]
    second = step(runner, **one(2, 1)).tokens[0]
    third = step(runner, **one(3, 1)).tokens[0]
    assert step(runner, removed=[0]).tokens == []
    again = step(runner, **one(0, 4, added=[new(0, tokens + first + second, prompt=2)]))
    assert again.tokens == [third]


def test_chunks_give_the_same_token_and_all_prompt_logprobs(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, {"default": {"echo": True}})
    added = [new(0, [7, 8, 9], prompt_logprobs=2, logprobs=1)]
    part = step(runner, slots=[0], starts=[0], counts=[2], sample_rows=[], added=added)
    assert part.tokens == []
    rest = step(runner, **one(2, 1))
    assert rest.tokens == [[7]]
    assert rest.prompt_logprobs is None
    (eight, nine) = part.prompt_logprobs[0]
    assert (eight.token_id, nine.token_id, nine.rank, nine.top_ids) == (8, 9, 1, [9, 10])
    (entry,) = rest.logprobs[0]
    assert (entry.token_id, entry.top_ids) == (7, [7])
    assert math.exp(entry.logprob) == pytest.approx(0.5)


def test_prescribed_logprobs(tmp_path: Path) -> None:
    output = {"tokens": [65], "logprobs": [[[70, -0.25], [65, -1.5], [3, None]]]}
    runner = make_runner(tmp_path, {"default": output})
    (entry,) = step(runner, **one(0, 1, added=[new(0, [1], logprobs=-1)])).logprobs[0]
    assert (entry.logprob, entry.rank, entry.top_ids) == (-1.5, 2, [70, 65, 3])
    assert entry.top_logprobs == [-0.25, -1.5, -math.inf]


def test_faults_by_step_and_by_prompt(tmp_path: Path) -> None:
    faults = [{"kind": "nan", "prompt": "4", "position": 1}, {"kind": "raise", "step": 3}]
    runner = make_runner(tmp_path, {"faults": faults})
    added = [new(0, [4]), new(1, [5])]
    columns = {"slots": [0, 1], "counts": [1, 1], "sample_rows": [0, 1]}
    assert step(runner, starts=[0, 0], added=added, **columns).corrupted == []
    assert step(runner).tokens == []
    assert step(runner, starts=[1, 1], **columns).corrupted == [0]
    with pytest.raises(InferplaneError, match="step 3"):
        step(runner, starts=[2, 2], **columns)


def test_plans_out_of_order_are_refused(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, None)
    step(runner, **one(0, 1, added=[new(0, [4])]))
    with pytest.raises(InferplaneError, match="does not follow"):
        step(runner, **one(2, 1))


@pytest.mark.parametrize(
    "script",
    [
        {"default": {}},
        {"default": {"tokens": [1], "echo": True}},
        {"default": []},
        {"typo": 1},
        {"faults": [{"kind": "nan"}]},
        {"faults": [{"kind": "melt", "step": 1}]},
    ],
)
def test_a_bad_script_is_named(tmp_path: Path, script: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        make_runner(tmp_path, script)
    assert caught.value.field == "script"


def test_the_tokenizer_is_the_bytes() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(byte_tokenizer(["hello wörld"]))
    text = "Aé€😀\n\x00"
    assert tokenizer.encode(text, add_special_tokens=False).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|im_end|>a").ids == [256 + SPECIAL_TOKENS.index("<|im_end|>"), ord("a")]
    assert tokenizer.decode([VOCAB_SIZE]) == "hello wörld"


def test_the_checkpoint_holds_the_table(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = write_checkpoint(tmp_path / "tiny", words=["ab"])
    table = load_file(path / "model.safetensors")["table"]
    config = json.loads((path / "config.json").read_text())
    assert table.shape == (VOCAB_SIZE + 1, VOCAB_SIZE + 1)
    assert list(table.argmax(axis=1)[:3]) == [1, 2, 3]
    assert describe(config).vocab_size == VOCAB_SIZE + 1
    assert describe(config).eos_token_ids == (EOS,)


def test_the_platform_is_never_automatic_and_imports_no_torch() -> None:
    assert PLATFORM.tier == 0
    assert PLATFORM.runner_seam
    assert MODEL.model_type == "scripted_bigram"
    assert probe(HostInfo(os="linux", machine="x86_64")).state is ProbeState.PRESENT
    code = (
        "import sys, inferplane_scripted.descriptor, inferplane_scripted.platform, inferplane_scripted.describe;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_slot_may_be_removed_again_after_a_failed_step(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, {"faults": [{"kind": "raise", "step": 1}]})
    with pytest.raises(InferplaneError):
        step(runner, **one(0, 1, added=[new(0, [4])]))
    assert step(runner, removed=[0]).tokens == []
    assert step(runner, **one(0, 1, removed=[0], added=[new(0, [4])])).tokens != []
