"""The sampling parameters of every slot as columns, so that a step picks its rows at once; draws nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from inferplane_api.step import NewRequest

NO_LOGPROBS = -2
"""In the logprobs columns: not asked for."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class SlotSampling:
    """Columns over slots. An id outside the vocabulary (a declared EOS the model cannot produce) is left out."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.greedy = np.ones(num_slots, bool)
        self.edited = np.zeros(num_slots, bool)
        """Logits of the slot are changed before the draw: bias, masks or penalties."""
        self.penalized = np.zeros(num_slots, bool)
        self.temperature = np.ones(num_slots, np.float32)
        self.top_k: Ints = np.zeros(num_slots, np.int64)
        """0: all."""
        self.top_p = np.ones(num_slots, np.float32)
        self.min_p = np.zeros(num_slots, np.float32)
        self.presence = np.zeros(num_slots, np.float32)
        self.frequency = np.zeros(num_slots, np.float32)
        self.repetition = np.ones(num_slots, np.float32)
        self.seed: Ints = np.zeros(num_slots, np.int64)
        """The 64 bits of the key, as a signed number."""
        self.min_tokens: Ints = np.zeros(num_slots, np.int64)
        self.logprobs: Ints = np.full(num_slots, NO_LOGPROBS, np.int64)
        self.prompt_logprobs: Ints = np.full(num_slots, NO_LOGPROBS, np.int64)
        self.processed_logprobs = np.zeros(num_slots, bool)
        """Reported of what the token was drawn from, not of the model's own logits."""
        self.logits_as_logprobs = np.zeros(num_slots, bool)
        self.num_prompt: Ints = np.zeros(num_slots, np.int64)
        self.bias: dict[int, tuple[Ints, Floats]] = {}
        self.allowed: dict[int, npt.NDArray[np.bool_]] = {}
        """[V] bool."""
        self.held_off: dict[int, Ints] = {}
        """Ids that are masked while fewer than min_tokens were generated."""
        self.listed: dict[int, Ints] = {}
        """Ids whose log-probabilities are reported too, of slots that have any."""
        self.special: set[int] = set()
        """Slots that want anything but the likeliest token: while there are none, a step looks at no column."""
        self.scored: set[int] = set()
        """Slots that want log-probabilities of their prompt."""

    def remove(self, slot: int) -> None:
        """The slot's request left."""
        self.bias.pop(slot, None)
        self.allowed.pop(slot, None)
        self.held_off.pop(slot, None)
        self.listed.pop(slot, None)
        self.special.discard(slot)
        self.scored.discard(slot)
        self.edited[slot] = self.penalized[slot] = False
        self.logprobs[slot] = self.prompt_logprobs[slot] = NO_LOGPROBS

    def add(self, request: NewRequest) -> None:
        """A request enters its slot."""
        slot, params = request.slot, request.params
        self.remove(slot)
        self.greedy[slot] = params.greedy
        self.penalized[slot] = params.has_penalties
        self.temperature[slot] = params.effective_temperature
        self.top_k[slot] = max(0, params.top_k) if params.top_k < self.vocab_size else 0
        self.top_p[slot], self.min_p[slot] = params.top_p, params.min_p
        self.presence[slot], self.frequency[slot] = params.presence_penalty, params.frequency_penalty
        self.repetition[slot] = params.repetition_penalty
        self.seed[slot] = np.uint64(request.seed).astype(np.int64)
        self.min_tokens[slot] = params.min_tokens
        self.logprobs[slot] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        mode = params.logprobs_mode or "raw_logprobs"
        self.processed_logprobs[slot] = mode.startswith("processed")
        self.logits_as_logprobs[slot] = mode.endswith("logits")
        if params.logprob_token_ids:
            # In the order of the request.
            self.listed[slot] = np.array([i for i in params.logprob_token_ids if i < self.vocab_size], np.int64)
            self.logprobs[slot] = max(0, self.logprobs[slot]) if self.logprobs[slot] != -1 else -1
        self.prompt_logprobs[slot] = NO_LOGPROBS if params.prompt_logprobs is None else params.prompt_logprobs
        self.num_prompt[slot] = request.num_prompt_tokens
        self._add_token_lists(request)
        token_lists = (self.bias, self.allowed, self.held_off)
        self.edited[slot] = (
            params.has_penalties or bool(params.bad_words_token_ids) or any(slot in lists for lists in token_lists)
        )
        if self.edited[slot] or not params.greedy or self.logprobs[slot] != NO_LOGPROBS:
            self.special.add(slot)
        if params.prompt_logprobs is not None:
            self.scored.add(slot)

    def edit(self, slot: int) -> None:
        """Something else than the columns changes the slot's logits."""
        self.edited[slot] = True
        self.special.add(slot)

    def _add_token_lists(self, request: NewRequest) -> None:
        slot, params = request.slot, request.params
        if params.logit_bias:
            ids = self._in_vocabulary(params.logit_bias)
            self.bias[slot] = (ids, np.array([params.logit_bias[i] for i in ids.tolist()], np.float32).clip(-100, 100))
        if params.allowed_token_ids is not None:
            allowed = np.zeros(self.vocab_size, bool)
            allowed[self._in_vocabulary(params.allowed_token_ids)] = True
            self.allowed[slot] = allowed
        if params.min_tokens > 0:
            self.held_off[slot] = self._in_vocabulary((*request.eos_token_ids, *params.stop_token_ids))

    def _in_vocabulary(self, ids: Any) -> Ints:
        listed = np.array(sorted(set(ids)), np.int64)
        return listed[listed < self.vocab_size]
