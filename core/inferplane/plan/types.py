"""What was decided: the frozen Plan and the record of every decision. Holds no logic."""

from __future__ import annotations

import msgspec

from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.kv import KVGeometry
from inferplane_api.model import ModelSpec
from inferplane_api.pooling import PoolingParams
from inferplane_api.runner import RunnerLimits
from inferplane_api.spec import DeviceInfo, ProcessorParameter, Reason, SchedulingConstraints


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin's part that was chosen, and where it comes from, so that children load exactly this."""

    id: str
    load: str
    """"module:attribute"."""
    distribution: str
    version: str


class Loser(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was not chosen, and why."""

    id: str
    score: int | None = None
    reasons: tuple[Reason, ...] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: shown by the start-up line, `plugins`, `doctor`, `explain` and the admin endpoint alike."""

    subject: str
    """"platform", "attention full x30", "linear", "ops", "config cache.block_size", ..."""
    chosen: str
    score: int | None = None
    source: str = "automatic"
    """"automatic", "user", "checkpoint", "device" or "plugin NAME"."""
    reason: str = ""
    losers: tuple[Loser, ...] = ()


class OpBinding(msgspec.Struct, frozen=True, kw_only=True):
    """Which provider runs an op."""

    op: str
    """"rms_norm@1"."""
    provider: Component


class PlannedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A logits processor that an engine loads."""

    name: str
    """For errors: "acme.top_h of acme-sampling 1.0", or the module:Class that the user gave."""
    component: Component
    parameters: tuple[ProcessorParameter, ...] | None = None
    """What a request may say to it; None: a class that declares nothing gets whatever the request carries."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the configuration in effect, and where it comes from."""

    path: str
    """"cache.block_size"."""
    value: str
    source: str
    """"flag --block-size", "file FILE", "keyword block_size", "default", "plugin NAME VERSION", "device", "checkpoint"
    or "automatic"."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to know. Made once, by `resolve`; nobody re-decides or edits it."""

    platform: Component
    platform_name: str
    runner_seam: bool
    device: DeviceInfo
    platform_options: dict[str, str | int | float | bool] = {}
    num_threads: int | None = None

    checkpoint_path: str
    checkpoint_format: Component
    dummy_weights: bool = False
    card: CheckpointCard
    model: ModelSpec
    architecture: Component | None
    """The model's class, the core's or a plugin's; None where a platform's own runner brings it."""

    pooler: PoolingParams | None = None
    """How prompts are pooled where a request says nothing else; None: the model generates."""
    matryoshka: tuple[int, ...] | None = None
    """Sizes that a pooled request's `dimensions` may be; empty: any; None: it may not be asked for."""
    lower_case: bool = False
    """Texts to pool are lower-cased before they are tokenized."""

    dtype: str
    kv_dtype: str
    geometry: KVGeometry
    attention: tuple[Component, ...]
    """Per KV group; empty on a runner-seam platform."""
    ops: tuple[OpBinding, ...]
    graph_rows: tuple[int, ...] = ()
    """Numbers of single-token rows whose steps are captured; empty: every step runs eagerly."""
    linear: tuple[tuple[str, Component], ...]
    """(scheme name, kernel), the best kernel of each scheme; a scheme not listed goes to "reference.linear"."""

    limits: RunnerLimits
    """max_model_len is the upper bound; what fits is measured and told in Ready."""
    auto_max_model_len: bool
    """True: the engine may shrink max_model_len to what fits; False: the user asked for it: not fitting is an error."""
    max_pages: int | None = None
    """The user's limit on the pool."""
    memory_limit_bytes: int | None = None
    """The user's --kv-cache-memory-bytes."""
    memory_utilization: float = 0.9
    """Share of the measured free memory that the engine may use."""
    scheduling: SchedulingConstraints
    policy: str = "fcfs"
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 4
    seed: int = 0
    plugins_mode: str = "auto"
    """"auto", "listed" or "locked"; when locked, a plugin that changes the core is an error."""

    logits_processors: tuple[PlannedProcessor, ...] = ()
    hooks: tuple[Component, ...] = ()
    """Plugins whose worker hooks an engine process calls."""
    settings: tuple[Setting, ...] = ()
    """Every setting that matters to an engine, with the value that holds."""
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()
