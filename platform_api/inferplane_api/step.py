"""One engine step as the scheduler asks for it and as a runner answers it: plain integers, no tensors.

A StepPlan is a delta: the runner keeps the state of every request in a numbered slot. The same delta goes to every
rank. Rows stand in batch order, single-token (decode) rows first.
"""

from __future__ import annotations

import msgspec

from inferplane_api.pooling import PoolingParams
from inferplane_api.sampling import SamplingParams


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that enters a slot, for the first time or again after a preemption."""

    slot: int
    request_id: str
    token_ids: list[int]
    """All tokens known so far: the prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    """The 64-bit key of this request's noise; never None."""
    eos_token_ids: tuple[int, ...] = ()
    """Masked while fewer than params.min_tokens were generated; empty with ignore_eos."""
    adapter: int = 0
    """Adapter slot; 0 is none."""
    pooling: PoolingParams | None = None
    """Not None: nothing is sampled; the step that completes the prompt gives a vector (`StepResult.pooled`)."""


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to compute in one step. May be empty, and an empty step must still run (lockstep ranks)."""

    step_id: int
    removed: list[int] = []
    """Slots whose request left (finished, aborted, preempted). Applied before `added`. After a step that failed, a slot
    may be named again: removing what is not there does nothing."""
    added: list[NewRequest] = []
    page_slots: list[int] = []
    page_groups: list[int] = []
    page_indices: list[int] = []
    page_ids: list[int] = []
    """Four parallel columns: in `page_slots[i]`, entry `page_indices[i]` of the page table of group
    `page_groups[i]` becomes `page_ids[i]`. Covers appended pages and entries that left a sliding window (null page).
    Applied after `added`."""
    slots: list[int] = []
    starts: list[int] = []
    counts: list[int] = []
    """Three parallel columns, a row each: compute tokens [start, start + count) of the request in the slot.
    A token beyond the known ones is the one that the newest launched step with a row of the slot sampled for it; a slot
    may sit out steps between the two."""
    sample_rows: list[int] = []
    """Rows (indices into `slots`, ascending) whose last token's logits are sampled."""
    draft_tokens: list[list[int]] | None = None
    """Per row, tokens to verify; they are part of `counts`."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(self.counts)

    @property
    def empty(self) -> bool:
        """True when no row is computed."""
        return not self.slots


class SampleInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What sampling needs from the host, decided after launch: rows with a grammar or a host-side processor."""

    bitmask_rows: list[int] = []
    """Indices into `StepPlan.sample_rows`."""
    bitmask: bytes = b""
    """int32 words, [len(bitmask_rows), ceil(vocab_size / 32)]; bit set: token allowed."""


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position: the token's own first, then the most likely ones in descending order."""

    token_id: int
    logprob: float
    rank: int
    """1 is the most likely."""
    top_ids: list[int]
    top_logprobs: list[float]
    listed_ids: list[int] = []
    """Those of `SamplingParams.logprob_token_ids`, and their log-probabilities."""
    listed_logprobs: list[float] = []


class StepResult(msgspec.Struct, kw_only=True):
    """What one step gave; columns are parallel to `StepPlan.sample_rows`."""

    step_id: int
    tokens: list[list[int]]
    """0 to k sampled tokens per sampled row."""
    logprobs: list[list[TokenLogprobs] | None] | None = None
    """Per sampled row, one entry a token; None where not asked for."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] | None = None
    """Row index to the log-probabilities of the prompt tokens that follow this row's computed positions:
    computing [start, start + count) gives those of prompt tokens start + 1 … min(start + count, prompt - 1)."""
    pooled: dict[int, list[float]] | None = None
    """Index into `StepPlan.slots` to the vector, for the rows that complete the prompt of a request with `pooling`."""
    corrupted: list[int] = []
    """Indices into sample_rows whose logits held NaN or only -inf, reduced on the device."""
    failed: dict[int, str] = {}
    """Index into sample_rows to why that row could not be sampled: a logits processor of its request failed. The
    request ends; the others of the step are not concerned."""
    refused: dict[int, str] = {}
    """Index into sample_rows to why a logits processor does not take the parameters of that row's request: its `add`
    raised ValueError. The request ends as one that asked for something wrong; no index is in `failed` too."""
