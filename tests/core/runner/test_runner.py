"""The runner's calls one by one: device-fed tokens, empty steps, scores, errors, its own and a platform's runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch

from inferplane.checkpoint.safetensors_format import SafetensorsFormat
from inferplane.errors import InferplaneError
from inferplane.plan.types import Component
from inferplane.runner.create import create_runner
from inferplane.runner.runner import TorchRunner
from inferplane_api.runner import Runner, RunnerContext
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import NewRequest, SampleInputs, StepPlan

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
PROMPT = list(range(10, 21))


def request(slot: int, tokens: list[int], params: SamplingParams = GREEDY) -> NewRequest:
    return NewRequest(slot=slot, request_id="r", token_ids=tokens, num_prompt_tokens=len(tokens), params=params, seed=1)


def first_step(params: SamplingParams = GREEDY, **changes: Any) -> StepPlan:
    """The prompt in pages 3, 5, … of slot 2; eight pages of four tokens are enough for all that follows."""
    fields: dict[str, Any] = {
        "step_id": 7,
        "added": [request(2, PROMPT, params)],
        "page_slots": [2] * 8,
        "page_groups": [0] * 8,
        "page_indices": list(range(8)),
        "page_ids": [3, 5, 7, 9, 11, 13, 15, 17],
        "slots": [2],
        "starts": [0],
        "counts": [len(PROMPT)],
        "sample_rows": [0],
    }
    return StepPlan(**{**fields, **changes})


def step(runner: Any, plan: StepPlan, inputs: SampleInputs | None = None) -> Any:
    handle = runner.launch(plan)
    runner.sample(handle, inputs)
    return runner.collect(handle)


def test_steps_may_be_launched_before_the_tokens_of_the_last_are_collected(
    engine_of: Any, tiny_llama_dir: Path
) -> None:
    runner = engine_of(tiny_llama_dir).runner
    plans = [first_step()] + [
        StepPlan(step_id=8 + i, slots=[2], starts=[len(PROMPT) + i], counts=[1], sample_rows=[0]) for i in range(5)
    ]
    one_by_one = [step(runner, plan).tokens for plan in plans]
    runner.launch(StepPlan(step_id=0, removed=[2]))
    handles = []
    for plan in plans:
        handles.append(runner.launch(plan))
        runner.sample(handles[-1], None)
    results = [runner.collect(handle) for handle in handles]
    assert [result.tokens for result in results] == one_by_one
    assert [result.step_id for result in results] == [plan.step_id for plan in plans]
    assert len({token for ((token,),) in one_by_one}) > 1


def test_an_empty_step_runs_and_gives_nothing(engine_of: Any, tiny_llama_dir: Path) -> None:
    result = step(engine_of(tiny_llama_dir).runner, StepPlan(step_id=3))
    assert (result.step_id, result.tokens, result.corrupted) == (3, [], [])
    assert result.logprobs is result.prompt_logprobs is None


def test_a_chunk_that_does_not_end_the_prompt_samples_nothing(engine_of: Any, tiny_llama_dir: Path) -> None:
    runner = engine_of(tiny_llama_dir).runner
    part = step(runner, first_step(counts=[6], sample_rows=[]))
    assert part.tokens == []
    rest = step(runner, StepPlan(step_id=8, slots=[2], starts=[6], counts=[5], sample_rows=[0]))
    runner.launch(StepPlan(step_id=9, removed=[2]))
    assert rest.tokens == step(runner, first_step()).tokens


def test_prompt_scores_come_in_blocks_and_only_for_the_prompt(
    engine_of: Any, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    runner = engine_of(tiny_llama_dir).runner
    whole = step(runner, first_step(params)).prompt_logprobs
    runner.launch(StepPlan(step_id=9, removed=[2]))
    monkeypatch.setattr("inferplane.runner.runner.PROMPT_BLOCK_BYTES", 4 * 320 * 3)
    result = step(runner, first_step(params))
    assert [score.token_id for score in whole[0]] == PROMPT[1:]
    assert [(s.token_id, s.rank, s.top_ids) for s in result.prompt_logprobs[0]] == [
        (s.token_id, s.rank, s.top_ids) for s in whole[0]
    ]
    later = step(runner, StepPlan(step_id=8, slots=[2], starts=[len(PROMPT)], counts=[1], sample_rows=[0]))
    assert later.prompt_logprobs is None


def test_a_bitmask_decided_after_launch_is_obeyed(engine_of: Any, tiny_llama_dir: Path) -> None:
    words = np.zeros(10, np.int32)
    words[4] = 1 << 3
    inputs = SampleInputs(bitmask_rows=[0], bitmask=words.tobytes())
    assert step(engine_of(tiny_llama_dir).runner, first_step(), inputs).tokens == [[4 * 32 + 3]]


def test_corrupted_rows_are_reported(engine_of: Any, tiny_llama_dir: Path) -> None:
    runner = engine_of(tiny_llama_dir).runner
    logits = runner._model.logits
    runner._model.logits = lambda hidden: logits(hidden) * torch.nan
    assert step(runner, first_step()).corrupted == [0]


def test_warming_up_leaves_no_trace(engine_of: Any, tiny_llama_dir: Path) -> None:
    runner = engine_of(tiny_llama_dir).runner
    assert not any(view.k.any() or view.v.any() for view in runner._views)
    assert not runner._state.num_known.any()


def test_dummy_weights_are_random_and_follow_the_seed(engine_of: Any, tiny_llama_dir: Path) -> None:
    def tokens(seed: int) -> list[int]:
        runner = engine_of(tiny_llama_dir, dummy_weights=True, checkpoint_path="/nowhere", plan_seed=seed).runner
        params = SamplingParams(temperature=0.0, logprobs=0)
        return [score.logprob for score in step(runner, first_step(params)).logprobs[0]]

    assert tokens(1) == tokens(1) != tokens(2)


def test_memory_that_does_not_hold_a_request_is_an_error(engine_of: Any, tiny_llama_dir: Path) -> None:
    with pytest.raises(InferplaneError, match="does not hold one request") as caught:
        engine_of(tiny_llama_dir, max_pages=3)
    assert "--num-pages-override" in caught.value.remedy


def test_the_memory_table_is_there_after_allocation(engine_of: Any, tiny_llama_dir: Path) -> None:
    engine = engine_of(tiny_llama_dir)
    rows = {row.name: row.num_bytes for row in engine.runner.memory_table}
    assert list(rows) == ["weights", "work space", "KV cache", "free"]
    assert rows["KV cache"] == engine.num_pages * engine.runner._plan.geometry.page_bytes


class SeamPlatform:
    """A platform with a runner of its own."""

    made: Any = object()
    contexts: ClassVar[list[RunnerContext]] = []

    def __init__(self, context: Any) -> None:
        self.runtime = self
        self.active = False

    def activate(self) -> None:
        self.active = True

    def create_runner(self, context: RunnerContext) -> Any:
        assert self.active
        SeamPlatform.contexts.append(context)
        return SeamPlatform.made


COMPONENT = Component(id="seam", load="x:Y", distribution="acme", version="1.2")


def load(component: Component) -> Any:
    """Only the platform and the checkpoint format are loaded for a runner of the platform's own."""
    return SeamPlatform if component == COMPONENT else SafetensorsFormat


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> type[SeamPlatform]:
    monkeypatch.setattr(SeamPlatform, "contexts", [])
    return SeamPlatform


def test_a_platforms_own_runner_gets_everything(plan_of: Any, tiny_llama_dir: Path, seam: type[SeamPlatform]) -> None:
    plan = plan_of(tiny_llama_dir, runner_seam=True, platform=COMPONENT, platform_options={"speed": 3})
    assert create_runner(plan, print, load) is seam.made
    (context,) = seam.contexts
    assert context.checkpoint is not None
    assert "model.norm.weight" in set(context.checkpoint.names())
    assert (context.model, context.geometry, context.limits) == (plan.model, plan.geometry, plan.limits)
    assert (context.dtype, dict(context.options), context.progress) == ("float32", {"speed": 3}, print)
    create_runner(msgspec.structs.replace(plan, dummy_weights=True), print, load)
    assert seam.contexts[1].checkpoint is None


def test_a_seam_that_makes_no_runner_is_an_error(
    plan_of: Any, tiny_llama_dir: Path, seam: type[SeamPlatform], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seam, "made", None)
    with pytest.raises(InferplaneError, match=r"acme 1\.2"):
        create_runner(plan_of(tiny_llama_dir, runner_seam=True, platform=COMPONENT), print, load)


def test_core_has_one_runner(engine_of: Any, tiny_llama_dir: Path) -> None:
    runner = engine_of(tiny_llama_dir).runner
    assert isinstance(runner, TorchRunner)
    assert isinstance(runner, Runner)


def test_a_model_of_another_version_than_planned_is_not_built(
    engine_of: Any, plan_of: Any, tiny_llama_dir: Path
) -> None:
    """The package was replaced between the plan and the engine process."""
    planned = plan_of(tiny_llama_dir).architecture
    with pytest.raises(InferplaneError, match=rf"{planned.id} was planned with inferplane 0\.0\.9") as caught:
        engine_of(tiny_llama_dir, architecture=msgspec.structs.replace(planned, version="0.0.9"))
    assert caught.value.code == "plan.version"
