"""What the scheduler knows about one request: plain integers, planned apart from confirmed. Decides nothing."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferplane.messages import Request
    from inferplane_api.step import TokenLogprobs

NO_SLOT = -1


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    """Not started, or preempted."""
    PREFILLING = "prefilling"
    """In a slot; known tokens are still to be computed."""
    DECODING = "decoding"
    """In a slot; every known token is planned, one new token a step."""
    DONE = "done"


class RequestState:
    """One request from submission to its last delta.

    `planned` positions are in steps that were planned, whether or not they were collected; `tokens` holds what is
    confirmed. In status DECODING the next position to plan is `planned`; its token may still be on the device.
    """

    __slots__ = (
        "arrival",
        "boundary",
        "client_id",
        "done",
        "end",
        "fast_limit",
        "first",
        "followers",
        "fresh",
        "hashes",
        "last_step",
        "leader",
        "limit",
        "min_total",
        "nulled",
        "num_cached",
        "num_preemptions",
        "num_prompt",
        "order",
        "pages",
        "planned",
        "prompt_logprobs",
        "published",
        "queue_seconds",
        "request",
        "request_id",
        "slot",
        "status",
        "stop_ids",
        "tokens",
    )

    def __init__(self, request: Request, order: tuple[int, int], max_model_len: int, arrival: float) -> None:
        params = request.params
        num_prompt = len(request.prompt_token_ids)
        rest = max_model_len - num_prompt if params.max_tokens is None else params.max_tokens
        self.request = request
        self.client_id = request.client_id
        self.request_id = request.request_id
        self.order = order
        """(priority, sequence number): lower goes first."""
        self.arrival = arrival
        self.status = Status.WAITING
        self.done = False
        self.slot = NO_SLOT

        self.tokens = list(request.prompt_token_ids)
        self.num_prompt = num_prompt
        self.limit = min(num_prompt + rest, max_model_len)
        """Most tokens, prompt included."""
        self.fast_limit = 0 if params.repetition_detection is not None else self.limit
        """Below so many tokens, a token that is no stop id cannot end the request."""
        self.end = self.limit - 1
        """Positions from here on are never planned once the prompt is: the last token is not computed."""
        self.min_total = num_prompt + params.min_tokens
        self.stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else request.eos_token_ids)

        self.leader: RequestState | None = None
        """The request with the same prompt that is waited for; then the prompt is in the cache."""
        self.followers: list[RequestState] = []

        self.planned = 0
        self.boundary = 0
        """Position at which the plain decode path must stop to think: page boundary or end."""
        self.last_step = -1
        """The newest step with a row of this request."""

        self.pages: list[list[int]] = []
        """Per group, the page table; the null page where the window has moved on."""
        self.first: list[int] = []
        """Per group, the first entry that may not be null."""
        self.nulled: list[int] = []
        """Per group, entries below this are null in the runner's table too."""
        self.hashes: list[bytes] = []
        """Chain hash at the end of every complete block, as far as it was needed."""
        self.published = 0
        """Tokens whose pages were offered to the prefix index."""

        self.fresh = True
        """No delta was sent."""
        self.num_cached = 0
        self.num_preemptions = 0
        self.queue_seconds: float | None = None
        """None until the first step that has a row of it."""
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            None if params.prompt_logprobs is None else [None] * num_prompt
        )
        """Filled chunk by chunk; None when they were not asked for or have been sent."""

    @property
    def computed_limit(self) -> int:
        """Most positions that are ever computed."""
        return max(self.end, self.num_prompt)

    @property
    def reads_cache(self) -> bool:
        """False when every position of the prompt must be computed, whatever the prefix cache holds."""
        pooling = self.request.pooling
        return self.prompt_logprobs is None and (pooling is None or pooling.reads_cached_pages)

    @property
    def samples(self) -> bool:
        """False when the prompt is only scored or pooled."""
        return self.limit > self.num_prompt
