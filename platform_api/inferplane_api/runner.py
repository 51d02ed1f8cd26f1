"""The three calls of a step, and what a runner is created with. Core has one runner for every op-seam platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from inferplane_api.kv import KVGeometry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from inferplane_api.checkpoint import Checkpoint
    from inferplane_api.model import ModelSpec
    from inferplane_api.step import SampleInputs, StepPlan, StepResult


class RunnerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes a runner prepares for."""

    max_model_len: int
    """Longest context of a request, in tokens."""
    max_num_seqs: int
    """Number of slots."""
    max_num_batched_tokens: int
    """Most tokens of a step."""
    max_logprobs: int = 20


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured when the engine was ready; the front end validates requests against it."""

    max_model_len: int
    num_pages: int
    """Null page included."""
    max_num_seqs: int
    kv_tokens: int
    """Tokens that fit in the cache when every request is a plain one."""
    geometry: KVGeometry


class RunnerContext(NamedTuple):
    """What `Platform.create_runner` gets."""

    checkpoint: Checkpoint | None
    """None with load format "dummy"."""
    model: ModelSpec
    geometry: KVGeometry
    limits: RunnerLimits
    dtype: str
    options: Mapping[str, str | int | float | bool]
    progress: Callable[[str, float], None]
    """(phase, share done): announced phases, so that a long load is not taken for a hang."""


@runtime_checkable
class Runner(Protocol):
    """Executes step plans in the order given. Used from one thread.

    `launch` and `sample` only queue work; `collect` is the one call that waits for the device. Handles are collected in
    launch order; the caller keeps at most `queue_depth` outstanding.
    """

    def load(self) -> None:
        """Read the weights and build the model."""

    def allocate(self, max_pages: int | None) -> int:
        """Allocate the KV pool from measured free memory; at most max_pages. Returns the number of pages, null page
        included. Raises InferplaneError with the knobs that would help when not one request fits."""

    def warmup(self) -> None:
        """Whatever must run before the first request; may capture or compile."""

    def launch(self, plan: StepPlan) -> Any:
        """Queue the forward pass; the handle is the runner's own."""

    def sample(self, handle: Any, inputs: SampleInputs | None) -> None:
        """Queue sampling of the plan's sample_rows."""

    def collect(self, handle: Any) -> StepResult:
        """Wait for the step and return what it gave."""

    def close(self) -> None:
        """Give everything back."""
