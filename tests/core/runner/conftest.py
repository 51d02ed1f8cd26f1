"""A plan made by hand for a tiny checkpoint, and a scheduler of a few lines that drives a runner as told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplane.checkpoint.model_spec import model_spec
from inferplane.models.registry import MODELS
from inferplane.plan.geometry import kv_geometry, layer_groups
from inferplane.plan.types import Component, OpBinding, Plan
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.ops import SCHEMAS
from inferplane_api.runner import RunnerLimits
from inferplane_api.sampling import SamplingParams
from inferplane_api.spec import DeviceInfo, PageSizes, SchedulingConstraints
from inferplane_api.step import NewRequest, StepPlan, TokenLogprobs


def component(identifier: str, load: str, distribution: str = "inferplane") -> Component:
    return Component(id=identifier, load=load, distribution=distribution, version=version(distribution))


def cpu_parts(num_groups: int) -> dict[str, Any]:
    from inferplane_cpu import descriptor

    def of(spec: Any) -> Component:
        return component(getattr(spec, "id", "cpu"), spec.load, "inferplane-cpu")

    ops = tuple(OpBinding(op=op, provider=of(descriptor.OPS)) for op in descriptor.OPS.ops)
    return {
        "platform": of(descriptor.PLATFORM),
        "attention": (of(descriptor.ATTENTION),) * num_groups,
        "ops": ops,
        "linear": (("dense", of(descriptor.LINEAR)),),
    }


def reference_parts(num_groups: int) -> dict[str, Any]:
    provider = component("reference.ops", "inferplane.builtin.ops:PROVIDER")
    return {
        "platform": component("reference", "inferplane.builtin.platform:ReferencePlatform"),
        "attention": (component("reference.paged", "inferplane_api.reference.attention:PagedAttention"),) * num_groups,
        "ops": tuple(OpBinding(op=schema.id, provider=provider) for schema in SCHEMAS.values()),
        "linear": (("dense", component("reference.linear", "inferplane.builtin.linear:ReferenceLinear")),),
    }


def seam_parts(platform: Component) -> dict[str, Any]:
    """A platform with a runner of its own: nothing else is selected."""
    return {"platform": platform, "attention": (), "ops": (), "linear": ()}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {"cpu": cpu_parts, "reference": reference_parts}


def make_plan(
    path: Path,
    platform: str | Component = "reference",
    *,
    plan_seed: int = 0,
    dtype: str = "float32",
    block_size: int = 4,
    max_model_len: int = 256,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 256,
    **changes: Any,
) -> Plan:
    config = json.loads((path / "config.json").read_text())
    model = model_spec(config)
    groups = layer_groups(model)
    fields: dict[str, Any] = {
        "platform_name": platform if isinstance(platform, str) else platform.id,
        "seed": plan_seed,
        "runner_seam": False,
        "device": DeviceInfo(dtypes=frozenset({"float32", "bfloat16"})),
        "num_threads": 1,
        "checkpoint_path": str(path),
        "checkpoint_format": component("hf.safetensors", "inferplane.checkpoint.safetensors_format:SafetensorsFormat"),
        "card": CheckpointCard(config=config),
        "model": model,
        "architecture": component(model.model_type, MODELS[model.model_type]),
        "dtype": dtype,
        "kv_dtype": dtype,
        "geometry": kv_geometry(model, dtype, block_size, [PageSizes()] * len(groups)),
        "limits": RunnerLimits(
            max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        ),
        "auto_max_model_len": False,
        "memory_limit_bytes": 64 * 2**20,
        "scheduling": SchedulingConstraints(),
        **(PARTS[platform](len(groups)) if isinstance(platform, str) else seam_parts(platform)),
        **changes,
    }
    return Plan(**fields)


@dataclass
class Sequence:
    """A request on its way through a runner."""

    prompt: list[int]
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0, max_tokens=8))
    seed: int = 0
    slot: int = -1
    computed: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    pages: list[list[int]] = field(default_factory=list)
    preemptions_left: int = 2

    @property
    def done(self) -> bool:
        return len(self.tokens) >= (self.params.max_tokens or 0)

    def as_new(self) -> NewRequest:
        return NewRequest(
            slot=self.slot,
            request_id=str(id(self)),
            token_ids=self.prompt + self.tokens,
            num_prompt_tokens=len(self.prompt),
            params=self.params,
            seed=self.seed,
            eos_token_ids=(2,),
        )


class TinyScheduler:
    """Hands out pages at random and computes chunks of random size; every choice comes from `seed`."""

    def __init__(self, runner: Any, plan: Plan, num_pages: int, seed: int = 0) -> None:
        self.runner = runner
        self.groups = plan.geometry.groups
        self.limits = plan.limits
        self.random = np.random.default_rng(seed)
        self.free = self.random.permutation(np.arange(1, num_pages)).tolist()
        self.slots = self.random.permutation(plan.limits.max_num_seqs).tolist()
        self.removed: list[int] = []
        self.step_id = 0

    def run(
        self, sequences: list[Sequence], *, chunk: int = 10**6, preempt: float = 0.0, together: bool = True
    ) -> None:
        """To the end: `chunk` is the longest prompt chunk, `preempt` the chance to be thrown out, a step."""
        waiting = list(sequences)
        running: list[Sequence] = []
        while waiting or running:
            added = []
            while waiting and self.slots and (together or not running):
                sequence = waiting.pop(0)
                sequence.slot, sequence.computed = self.slots.pop(), 0
                sequence.pages = [[] for _ in self.groups]
                added.append(sequence.as_new())
                running.append(sequence)
            self.step(running, added, chunk)
            for sequence in list(running):
                thrown_out = sequence.preemptions_left > 0 and self.random.random() < preempt
                if not sequence.done and not thrown_out:
                    continue
                running.remove(sequence)
                self.release(sequence)
                if not sequence.done:
                    sequence.preemptions_left -= 1
                    waiting.append(sequence)
        self.runner.launch(StepPlan(step_id=self.step_id, removed=self.removed))
        self.removed = []

    def release(self, sequence: Sequence) -> None:
        self.slots.append(sequence.slot)
        self.removed.append(sequence.slot)
        self.free += [page for pages in sequence.pages for page in pages]
        self.random.shuffle(self.free)

    def step(self, running: list[Sequence], added: list[NewRequest], chunk: int) -> None:
        budget = self.limits.max_num_batched_tokens
        rows: list[tuple[Sequence, int]] = []
        for sequence in running:
            pending = len(sequence.prompt) + len(sequence.tokens) - sequence.computed
            limit = min(pending, budget, chunk)
            count = int(self.random.integers(1, limit + 1)) if pending > 1 and chunk < 10**6 and limit else limit
            if count:
                rows.append((sequence, count))
                budget -= count
        rows.sort(key=lambda row: row[1] != 1)
        columns: list[tuple[int, int, int, int]] = []
        for sequence, count in rows:
            for group, pages in enumerate(sequence.pages):
                size = self.groups[group].tokens_per_page
                while len(pages) * size < sequence.computed + count:
                    columns.append((sequence.slot, group, len(pages), self.free.pop()))
                    pages.append(columns[-1][-1])
        sampled = [
            index
            for index, (sequence, count) in enumerate(rows)
            if sequence.computed + count == len(sequence.prompt) + len(sequence.tokens)
        ]
        page_slots, page_groups, page_indices, page_ids = (
            (list(c) for c in zip(*columns, strict=True)) if columns else ([], [], [], [])
        )
        plan = StepPlan(
            step_id=self.step_id,
            removed=self.removed,
            added=added,
            page_slots=page_slots,
            page_groups=page_groups,
            page_indices=page_indices,
            page_ids=page_ids,
            slots=[sequence.slot for sequence, _ in rows],
            starts=[sequence.computed for sequence, _ in rows],
            counts=[count for _, count in rows],
            sample_rows=sampled,
        )
        self.removed = []
        self.step_id += 1
        handle = self.runner.launch(plan)
        self.runner.sample(handle, None)
        result = self.runner.collect(handle)
        assert result.corrupted == []
        for row, scores in (result.prompt_logprobs or {}).items():
            sequence, _ = rows[row]
            sequence.prompt_logprobs.update({sequence.computed + 1 + i: score for i, score in enumerate(scores)})
        for sequence, count in rows:
            sequence.computed += count
        for index, row in enumerate(sampled):
            rows[row][0].tokens += result.tokens[index]
            if result.logprobs is not None and result.logprobs[index] is not None:
                rows[row][0].logprobs += result.logprobs[index]


@dataclass
class Engine:
    """A loaded runner with its scheduler."""

    runner: Any
    scheduler: TinyScheduler
    num_pages: int


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    return make_plan


@pytest.fixture
def sequence_of() -> type[Sequence]:
    return Sequence


@pytest.fixture
def engine_of() -> Any:
    """`engine_of(path, platform, seed=0, max_pages=None, **plan) -> Engine`, closed at the end of the test."""
    from inferplane.runner.create import create_runner

    runners = []

    def make(path: Path, platform: str = "cpu", *, seed: int = 0, max_pages: int | None = None, **plan: Any) -> Engine:
        made = make_plan(path, platform, **plan)
        runner = create_runner(made, lambda phase, share: None)
        runners.append(runner)
        runner.load()
        num_pages = runner.allocate(max_pages)
        runner.warmup()
        return Engine(runner, TinyScheduler(runner, made, num_pages, seed), num_pages)

    yield make
    for runner in runners:
        runner.close()
