"""Every message between a front end and an engine; knows nothing about how they travel.

Each carries the ids of both ends, so that N front ends and M engines can share one wiring.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inferplane_api.pooling import PoolingParams
from inferplane_api.runner import Capacity
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import TokenLogprobs


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One sequence to generate, or a prompt to pool. The child of an API request with n > 1 is a request of its own
    (params.n is 1)."""

    client_id: str
    engine_id: int = 0
    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    """max_tokens is resolved (never None) and fits the context."""
    seed: int
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end the request; empty with ignore_eos."""
    priority: int = 0
    """Lower runs earlier (policy "priority" only)."""
    cache_salt: str = ""
    arrival: float = 0.0
    """Seconds since the epoch, taken at the edge."""
    share: str = ""
    """Whose share of the engine it uses (policy "fair" only)."""
    pooling: PoolingParams | None = None
    """Not None: the prompt is pooled and nothing is sampled; params.max_tokens is 0."""
    follows: str = ""
    """Id of a request of the same client with the same prompt and salt, submitted before: its prompt is computed
    first, and found in the cache then."""
    queue_timeout: float | None = None
    """Seconds that it may wait in the engine before it starts; None: as long as it takes."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """The one backward message of the data path: the client left, or a stop string matched."""

    client_id: str
    engine_id: int = 0
    request_ids: list[str]


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """A call with a reply, applied at a step boundary: reset_prefix_cache, drain, stats, ..."""

    client_id: str
    engine_id: int = 0
    call_id: int
    name: str
    arguments: dict[str, Any] = {}


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A front end introduces itself; the engine answers with Ready once it is."""

    client_id: str
    engine_id: int = 0


ToEngine = Request | Abort | Control | Hello


ERROR_CODES = (
    "step_failed", "out_of_memory", "corrupted", "queue_timeout", "no_room", "refused", "logits_processor",
    "bad_processor_argument",
)  # fmt: skip
"""Why the engine gave a request up: its step failed, memory ran out even for it alone, its logits were not finite, it
waited too long, the cache is too small for it, it could never run, a logits processor failed, or refused its
parameters."""


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What a request gained in one step."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Sent once, with the first delta; the first entry is None."""
    pooled: bytes | None = None
    """The vector of a pooled request, sent with its finish_reason: float32, little-endian."""
    finish_reason: str | None = None
    """"stop", "length", "abort" or "error"."""
    stop_reason: int | str | None = None
    """The stop token id where one other than EOS ended the request, or "repetition_detected"; the front end fills in a
    stop string."""
    error: str | None = None
    """For the client: no internals; an error id points to the engine's log."""
    error_code: str = ""
    """One of ERROR_CODES with finish_reason "error"."""
    num_cached_tokens: int | None = None
    """With the first delta: prompt tokens that were not computed because the prefix cache had them."""
    queue_seconds: float | None = None
    """With the first delta: time from arrival at the engine to the first scheduled step."""


class Stats(msgspec.Struct, kw_only=True):
    """The engine's counters (since start) and gauges (now)."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_tokens_waiting: int = 0
    """Prompt tokens of requests that have not started."""
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    """In tokens."""
    prefix_cache_hits: int = 0
    """In tokens."""
    prompt_tokens: int = 0
    """Computed or found in the cache."""
    generation_tokens: int = 0
    corrupted_requests: int = 0
    num_steps: int = 0
    step_tokens: list[int] = []
    """Steps by how many tokens they held: up to each bound of STEP_TOKENS, and above the last."""
    step_tokens_sum: int = 0
    oldest_waiting_seconds: float = 0.0
    """Since the request arrived that has waited longest and has not started."""
    engine_restarts: int = 0
    """Filled in by the front end: no engine knows of those before it."""


class Outputs(msgspec.Struct, kw_only=True, tag="outputs"):
    """The deltas of one step for one client."""

    client_id: str
    engine_id: int
    deltas: list[Delta]
    stats: Stats | None = None
    started: list[str] = []
    """Requests that left the queue for the first time."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine takes requests; the client validates against the capacity."""

    client_id: str
    engine_id: int
    capacity: Capacity
    timeline: list[tuple[str, float]] = []
    """(phase, seconds it took) inside the engine process, in order."""


class Phase(msgspec.Struct, frozen=True, kw_only=True, tag="phase"):
    """A long phase is under way (loading, compiling), so silence is not a hang."""

    client_id: str
    engine_id: int
    name: str
    share: float


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag="alive"):
    """Sent by a thread that does not wait for the device."""

    client_id: str
    engine_id: int
    steps: int
    """Completed steps since start."""
    busy_seconds: float
    """Since the oldest step in flight was launched; 0 when none is."""
    expected_seconds: float = 0.0
    """What that step should take, from its tokens and the pace of earlier steps."""
    stats: Stats | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine cannot go on: the cause, for a person, with a remedy."""

    client_id: str
    engine_id: int
    code: str
    message: str
    remedy: str = ""


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """The answer to a Control."""

    client_id: str
    engine_id: int
    call_id: int
    result: Any = None
    error: str | None = None


FromEngine = Outputs | Ready | Phase | Alive | Failed | ControlReply
