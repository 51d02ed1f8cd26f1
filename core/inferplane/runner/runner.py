"""Runs step plans with torch on any op-seam platform: weights, KV pool, forward pass, sampling. Plans nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from inferplane.builtin.linear import ReferenceLinear
from inferplane.layers.context import LinearFactory, ModelContext
from inferplane.layers.loading import DummyCheckpoint, pooled_checkpoint
from inferplane.layers.ops import bind_ops
from inferplane.plan.load import Loader, construct
from inferplane.runner.batch_state import BatchState, Step, upload
from inferplane.runner.kv_memory import MemoryRow, allocate_pool, kv_views, plan_memory
from inferplane.runner.logits_processors import LogitsProcessors
from inferplane.runner.logprobs import LogprobBlock, read_logprobs, token_logprobs
from inferplane.runner.pooler import Pooled, Pooler, read_vectors
from inferplane.runner.sampler import Sampled, Sampler
from inferplane.runner.slot_sampling import NO_LOGPROBS
from inferplane.runner.step_graphs import StepGraphs
from inferplane.runner.step_shapes import StepShapes, pad
from inferplane.runner.warmup import warmup_steps
from inferplane_api.attention import AttentionContext
from inferplane_api.batch import StepBatch
from inferplane_api.kv import NULL_PAGE
from inferplane_api.logits_processors import ProcessorContext
from inferplane_api.platform import PlatformContext
from inferplane_api.step import StepResult, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.plan.types import Component, Plan
    from inferplane.runner.slot_sampling import Ints
    from inferplane_api.attention import PagedAttention
    from inferplane_api.checkpoint import Checkpoint
    from inferplane_api.kv import KVGroupSpec, KVView
    from inferplane_api.platform import Platform
    from inferplane_api.step import SampleInputs, StepPlan

PROMPT_BLOCK_BYTES = 64 * 2**20
"""Most bytes of one block of prompt logits."""


class Handle:
    """A launched step: what sampling needs, then what collecting needs."""

    def __init__(self, plan: StepPlan, step: Step | None, hidden: torch.Tensor | None) -> None:
        self.plan = plan
        self.step = step
        self.hidden = hidden
        """[T, hidden]; dropped once sampled."""
        self.rows: SampledRows | None = None
        self.prompt: list[PromptBlock] = []
        self.pooled: Pooled | None = None


class SampledRows(NamedTuple):
    """The result of sampling a step, on the device, and whom it belongs to."""

    sampled: Sampled
    slots: Ints
    positions: Ints
    """Absolute positions of the sampled tokens."""
    generations: Ints


class PromptBlock(NamedTuple):
    """Log-probabilities of some of a row's prompt tokens."""

    row: int
    logprobs: LogprobBlock


class TorchRunner:
    """Implements `inferplane_api.runner.Runner`. Sampled ids stay on the device and feed the next step; `collect` is
    the only call that waits."""

    def __init__(
        self, plan: Plan, progress: Callable[[str, float], None], load: Callable[[Component], Any] | None = None
    ) -> None:
        """Construct the plan's platform and make its device current. `load` is by default a `Loader` of the plan."""
        self._plan = plan
        self._load_component = load or Loader(plan)
        self._progress = progress
        self._shapes = StepShapes(plan.scheduling, plan.graph_rows)
        context = PlatformContext(plan.device, plan.platform_options, plan.num_threads)
        self._platform: Platform = construct(self._load_component, plan.platform, context)
        self._platform.runtime.activate()
        self._device = self._platform.device
        self._dtype: torch.dtype = getattr(torch, plan.dtype)
        self._attention: list[PagedAttention] = []
        self._model: Any = None
        self._weight_bytes = 0
        self._graphs: StepGraphs | None = None
        self._views: tuple[KVView, ...] = ()
        self.memory_table: tuple[MemoryRow, ...] = ()
        """Where the memory goes; filled by `allocate`."""

    def load(self) -> None:
        """Build the model and read its weights. Raises InferplaneError for a checkpoint that does not fit."""
        plan = self._plan
        before = self._platform.memory.free()
        with self._platform.memory.region("weights"), torch.no_grad():
            self._ops = bind_ops(plan.ops, self._load_component)
            self._attention = [
                construct(self._load_component, component, self._attention_context(group))
                for group, component in zip(plan.geometry.groups, plan.attention, strict=True)
            ]
            assert plan.architecture is not None, "only a runner of the platform's own goes without"
            model = construct(self._load_component, plan.architecture, self._model_context())
            if plan.dummy_weights:
                checkpoint: Checkpoint = DummyCheckpoint(model, self._dtype, plan.seed)
            else:
                weights = self._load_component(plan.checkpoint_format)()
                checkpoint = weights.open(Path(plan.checkpoint_path))
            with contextlib.closing(checkpoint):
                self._progress("weights", 0.1)
                model.load(checkpoint if plan.pooler is None else pooled_checkpoint(plan.model, checkpoint))
        self._model = model
        self._progress("weights", 1.0)
        self._weight_bytes = max(0, before - self._platform.memory.free())

    def _model_context(self) -> ModelContext:
        plan = self._plan
        kernels = {
            scheme: construct(self._load_component, component, self._device, self._dtype)
            for scheme, component in plan.linear
        }
        backends = {
            layer: backend
            for group, backend in zip(plan.geometry.groups, self._attention, strict=True)
            for layer in group.layers
        }
        return ModelContext(
            config=plan.card.config,
            spec=plan.model,
            ops=self._ops,
            linear=LinearFactory(kernels, ReferenceLinear(self._device, self._dtype)),
            attention=[backends[layer] for layer in range(plan.model.num_layers)] if backends else [],
            dtype=self._dtype,
            device=self._device,
        )

    def _attention_context(self, group: KVGroupSpec) -> AttentionContext:
        limits, layer = self._shapes.padded(self._plan.limits), self._plan.model.layers[group.layers[0]]
        return AttentionContext(
            group=group,
            num_heads=group.num_heads,
            scale=group.head_size**-0.5 if layer.scale is None else layer.scale,
            dtype=self._dtype,
            device=self._device,
            max_tokens=limits.max_num_batched_tokens,
            max_requests=limits.max_num_seqs,
            max_pages=-(-limits.max_model_len // group.tokens_per_page),
            softcap=layer.softcap,
        )

    def allocate(self, max_pages: int | None) -> int:
        """Allocate pool and slot state; see `plan_memory` for the size and the error."""
        plan, memory = self._plan, self._platform.memory
        planned = plan_memory(plan, memory.free(), max_pages, self._weight_bytes, self._dtype.itemsize)
        with memory.region("kv"):
            pool = allocate_pool(planned.num_pages, plan.geometry.page_bytes, self._device)
        self._views = kv_views(pool, plan.geometry, plan.model.num_layers)
        self.memory_table = planned.table
        num_slots = plan.limits.max_num_seqs
        self._state = BatchState(plan.limits, plan.geometry, self._device, self._shapes)
        self._sampler = Sampler(
            self._ops, num_slots, plan.model.vocab_size, self._device, self._make_processors(num_slots)
        )
        self._pooler = Pooler()
        graphs = self._platform.graphs() if plan.graph_rows else None
        self._graphs = None if graphs is None else StepGraphs(graphs, plan.graph_rows[-1], self._device)
        self._last_sampled = torch.zeros(num_slots, dtype=torch.int64, device=self._device)
        return planned.num_pages

    def _make_processors(self, num_slots: int) -> LogitsProcessors | None:
        plan = self._plan
        if not plan.logits_processors:
            return None
        context = ProcessorContext(plan.model.vocab_size, num_slots, plan.limits.max_model_len, self._device)
        return LogitsProcessors(plan.logits_processors, context, self._load_component)

    def warmup(self) -> None:
        """A small step on the null page, or one for every pair of buckets, so that no request pays for a first call."""
        steps = warmup_steps(self._plan.scheduling, self._plan.limits, self._plan.pooler)
        for index, step in enumerate(steps):
            self._progress("warm-up", index / len(steps))
            handle = self.launch(step)
            self.sample(handle, None)
            self.collect(handle)
        for view in self._views:
            view.k[NULL_PAGE].zero_()
            view.v[NULL_PAGE].zero_()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Handle:
        """Apply the plan's deltas and queue the forward pass."""
        for slot in plan.removed:
            self._sampler.remove(slot)
            self._pooler.remove(slot)
        for request in plan.added:
            self._sampler.add(request)
            self._pooler.add(request)
        self._state.apply(plan)
        if plan.empty:
            return Handle(plan, None, None)
        step = self._state.build(plan, self._last_sampled)
        for backend, batch in zip(self._attention, step.attention, strict=True):
            backend.plan(batch)
        if step.graph and self._graphs is not None:
            hidden = self._graphs.forward(step.input_ids, step.positions, self._forward)
        else:
            hidden = self._forward(step.input_ids, step.positions, step.query_start)
        return Handle(plan, step, hidden)

    def _forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, query_start: Ints | None = None
    ) -> torch.Tensor:
        batch = StepBatch(input_ids=input_ids, positions=positions, kv=self._views, query_start_host=query_start)
        hidden: torch.Tensor = self._model.forward(batch)
        return hidden

    @torch.inference_mode()
    def sample(self, handle: Handle, inputs: SampleInputs | None) -> None:
        """Queue sampling of the plan's sample_rows, and the log-probabilities of prompt tokens."""
        step, hidden, handle.hidden = handle.step, handle.hidden, None
        if step is None or hidden is None:
            return
        self._score_prompts(handle, step, hidden)
        handle.pooled = self._pooler.pool(step, hidden)
        if not handle.plan.sample_rows:
            return
        rows = np.array(handle.plan.sample_rows, np.int64)
        slots, positions = step.slots[rows], (step.starts + step.counts)[rows]
        last = step.query_start[1:][rows] - 1
        output_positions = positions - self._state.num_prompt[slots]
        sampled = self._sampler.sample(self._logits(hidden, last), slots, output_positions, inputs)
        self._last_sampled.index_copy_(0, upload(slots, self._device), sampled.tokens)
        handle.rows = SampledRows(sampled, slots, positions, self._state.generation[slots])

    def _logits(self, hidden: torch.Tensor, tokens: Ints) -> torch.Tensor:
        """[len(tokens), vocab] of some of the step's tokens; what is computed has the rows of a batch bucket."""
        padded = pad(tokens, self._shapes.rows(len(tokens)))
        whole = len(tokens) == len(padded) == len(hidden)
        chosen = hidden if whole else hidden.index_select(0, upload(padded, self._device))
        logits: torch.Tensor = self._model.logits(chosen)
        return logits[: len(tokens)]

    def _score_prompts(self, handle: Handle, step: Step, hidden: torch.Tensor) -> None:
        if not self._sampler.columns.scored:
            return
        wanted = self._sampler.columns.prompt_logprobs[step.slots]
        ends = np.minimum(step.starts + step.counts, self._state.num_prompt[step.slots] - 1)
        for row in np.flatnonzero((wanted != NO_LOGPROBS) & (ends > step.starts)).tolist():
            slot, start, end = step.slots[row], int(step.starts[row]), int(ends[row])
            targets = upload(self._state.token_ids[slot, start + 1 : end + 1].astype(np.int64), self._device)
            first = int(step.query_start[row])
            block = max(1, PROMPT_BLOCK_BYTES // (4 * self._plan.model.vocab_size))
            block = min(block, self._shapes.max_rows or block)
            for offset in range(0, end - start, block):
                size = min(block, end - start - offset)
                logits = self._logits(hidden, np.arange(first + offset, first + offset + size))
                num_top = np.full(size, wanted[row])
                as_logits = np.full(size, self._sampler.columns.logits_as_logprobs[slot])
                scores = token_logprobs(
                    self._ops.log_softmax, logits, targets[offset : offset + size], num_top, as_logits=as_logits
                )
                handle.prompt.append(PromptBlock(row, scores))

    def collect(self, handle: Handle) -> StepResult:
        """Wait for the step; columns are parallel to the plan's sample_rows."""
        plan, prompt = handle.plan, _read_prompts(handle.prompt)
        pooled = None if handle.pooled is None else read_vectors(handle.pooled)
        if handle.rows is None:
            nothing: list[list[int]] = [[] for _ in plan.sample_rows]
            return StepResult(step_id=plan.step_id, tokens=nothing, prompt_logprobs=prompt, pooled=pooled)
        sampled, slots, positions, generations = handle.rows
        tokens: list[int] = sampled.tokens.tolist()
        self._state.record(slots, positions, generations, np.array(tokens, np.int64))
        corrupted: list[bool] = sampled.corrupted.tolist()
        return StepResult(
            step_id=plan.step_id,
            tokens=[[token] for token in tokens],
            logprobs=_read_sampled_logprobs(sampled, len(tokens)),
            prompt_logprobs=prompt,
            pooled=pooled,
            corrupted=[row for row, bad in enumerate(corrupted) if bad] if any(corrupted) else [],
            failed={row: failure.text for row, failure in sampled.failed.items() if not failure.refused},
            refused={row: failure.text for row, failure in sampled.failed.items() if failure.refused},
        )

    def close(self) -> None:
        """Drop weights and pool, close the platform."""
        self._model, self._views, self._attention, self._graphs = None, (), [], None
        self._platform.close()


def _read_prompts(blocks: list[PromptBlock]) -> dict[int, list[TokenLogprobs]] | None:
    if not blocks:
        return None
    scores: dict[int, list[TokenLogprobs]] = {}
    for row, block in blocks:
        scores.setdefault(row, []).extend(read_logprobs(block))
    return scores


def _read_sampled_logprobs(sampled: Sampled, num_rows: int) -> list[list[TokenLogprobs] | None] | None:
    if sampled.logprobs is None:
        return None
    scores: list[list[TokenLogprobs] | None] = [None] * num_rows
    for row, score in zip(sampled.logprob_rows.tolist(), read_logprobs(sampled.logprobs), strict=True):
        scores[row] = [score]
    return scores
