"""Turns logits into tokens on the device, each row with its own parameters; waits for nothing, draws reproducibly."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from inferplane.runner.bad_words import BadWords
from inferplane.runner.batch_state import upload
from inferplane.runner.candidates import min_p_floor, nucleus, ordered_top_k
from inferplane.runner.logit_edits import TokenCounts, apply_bias_and_masks, apply_bitmask, apply_penalties
from inferplane.runner.logprobs import LogprobBlock, LogSoftmax, token_logprobs
from inferplane.runner.slot_sampling import NO_LOGPROBS, SlotSampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from inferplane.runner.logit_edits import ApplyTokenBitmask
    from inferplane.runner.logits_processors import Failure, LogitsProcessors
    from inferplane.runner.slot_sampling import Ints
    from inferplane_api.step import NewRequest, SampleInputs

MAX_CANDIDATES = 1024
"""Rows whose top_k is at most this are drawn from their candidates alone; also the first look for a nucleus."""


_NO_ROWS: Ints = np.empty(0, np.int64)


class GumbelNoise(Protocol):
    """The op `gumbel_noise`: seeds [N], positions [N], ids [N, C], all int64, give [N, C] float32."""

    def __call__(self, seeds: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor, /) -> torch.Tensor: ...


class Largest(Protocol):
    """The op `largest`: logits [N, V] float32 give (values [N], the lowest ids that have them [N] int64)."""

    def __call__(self, logits: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]: ...


class SamplerOps(Protocol):
    """The ops that a sampler calls; `inferplane.layers.ops.Ops` has them."""

    @property
    def largest(self) -> Largest: ...

    @property
    def log_softmax(self) -> LogSoftmax: ...

    @property
    def gumbel_noise(self) -> GumbelNoise: ...

    @property
    def apply_token_bitmask(self) -> ApplyTokenBitmask: ...


class Sampled(NamedTuple):
    """What one call drew; tensors on the device, rows in the order of the call."""

    tokens: torch.Tensor
    """[N] int64."""
    corrupted: torch.Tensor
    """[N] bool: the logits hold NaN, or no finite largest value."""
    logprobs: LogprobBlock | None
    logprob_rows: Ints
    """The rows that `logprobs` is about."""
    failed: Mapping[int, Failure] = MappingProxyType({})
    """Row to why a logits processor could not do its part; its token means nothing."""


class Draw(NamedTuple):
    """Random rows: logits divided by the temperature, [n, V], and their slots and output positions."""

    logits: torch.Tensor
    slots: Ints
    seeds: torch.Tensor
    positions: torch.Tensor

    def pick(self, rows: Ints) -> Draw:
        """Some of the rows."""
        if len(rows) == len(self.slots):
            return self
        chosen = upload(rows, self.logits.device)
        return Draw(self.logits[chosen], self.slots[rows], self.seeds[chosen], self.positions[chosen])


class Sampler:
    """Sampling state of all slots. A token's noise depends on (seed, output position, id) only (Gumbel-max), so a
    request draws the same tokens alone and in any batch.

    Order: bias and masks, bad words, penalties, logits processors, temperature, min_p, top_k, top_p. Ties go to the
    lowest id throughout.
    """

    def __init__(
        self,
        ops: SamplerOps,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
        processors: LogitsProcessors | None = None,
    ) -> None:
        self._ops = ops
        self._device = device
        self._synchronous = device.type == "cpu"
        self.columns = SlotSampling(num_slots, vocab_size)
        self._counts = TokenCounts(vocab_size, device)
        self._bad_words = BadWords(num_slots, vocab_size, device)
        self._processors = processors

    def remove(self, slot: int) -> None:
        """The slot's request left."""
        self.columns.remove(slot)
        self._counts.remove(slot)
        self._bad_words.remove(slot)
        if self._processors is not None:
            self._processors.remove(slot)

    def add(self, request: NewRequest) -> None:
        """A request enters its slot, perhaps with tokens that were generated before a preemption."""
        self.remove(request.slot)
        self.columns.add(request)
        if request.params.has_penalties:
            self._counts.add(request)
        if request.params.bad_words_token_ids:
            self._bad_words.add(request)
        if self._processors is not None and self._processors.add(request):
            self.columns.edit(request.slot)

    def sample(
        self, logits: torch.Tensor, slots: Ints, output_positions: Ints, inputs: SampleInputs | None = None
    ) -> Sampled:
        """Draw one token a row. logits [N, V] float32 stay unchanged; slots, output_positions [N] on the host."""
        columns = self.columns
        if not columns.special and (inputs is None or not inputs.bitmask_rows):
            largest, tokens = self._ops.largest(logits)
            return Sampled(tokens, _not_finite(largest), None, _NO_ROWS)
        processed = self._edit(logits, slots, output_positions, inputs)
        largest, tokens = self._ops.largest(processed)
        corrupted = _not_finite(largest)
        if processed is not logits:
            corrupted |= _not_finite(self._ops.largest(logits)[0])
        random = np.flatnonzero(~columns.greedy[slots])
        if random.size:
            drawn = self._draw(processed, slots, output_positions, random)
            tokens = tokens.index_copy(0, upload(random, self._device), drawn)
        penalized = np.flatnonzero(columns.penalized[slots])
        if penalized.size:
            self._counts.count(slots[penalized], tokens[upload(penalized, self._device)])
        if processed is not logits:
            self._bad_words.record(slots, tokens)
        failed: dict[int, Failure] = {}
        if self._processors is not None:
            failed = self._processors.finish(slots, tokens)
        logprob_rows = np.flatnonzero(columns.logprobs[slots] != NO_LOGPROBS)
        scores = self._logprobs(logits, processed, tokens, slots, logprob_rows) if logprob_rows.size else None
        return Sampled(tokens, corrupted, scores, logprob_rows, failed)

    def _logprobs(
        self, logits: torch.Tensor, processed: torch.Tensor, tokens: torch.Tensor, slots: Ints, rows: Ints
    ) -> LogprobBlock:
        columns, wanted = self.columns, slots[rows]
        if len(rows) < len(slots):
            chosen = upload(rows, self._device)
            logits, processed, tokens = logits[chosen], processed[chosen], tokens[chosen]
        of_processed = np.flatnonzero(columns.processed_logprobs[wanted])
        if of_processed.size:
            chosen = upload(of_processed, self._device)
            drawn_from = self._drawn_from(processed[chosen], wanted[of_processed])
            logits = logits.index_copy(0, chosen, drawn_from)
        listed = None
        if columns.listed:
            some = [columns.listed[slot].tolist() if slot in columns.listed else [] for slot in wanted.tolist()]
            listed = some if any(some) else None
        return token_logprobs(
            self._ops.log_softmax,
            logits,
            tokens,
            columns.logprobs[wanted],
            as_logits=columns.logits_as_logprobs[wanted],
            listed=listed,
        )

    def _drawn_from(self, logits: torch.Tensor, slots: Ints) -> torch.Tensor:
        """Edited logits [n, V] after temperature, min_p, top_k and top_p, minus infinity where excluded. Those of a
        greedy row as they are: nothing is drawn from them."""
        result = logits.clone()
        rows = np.flatnonzero(~self.columns.greedy[slots])
        if not rows.size:
            return result
        chosen, owners, columns = upload(rows, self._device), slots[rows], self.columns
        scaled = logits[chosen] / upload(columns.temperature[owners][:, None], self._device)
        values, ids = ordered_top_k(scaled, scaled.shape[-1])
        floor = min_p_floor(values[:, 0], upload(columns.min_p[owners], self._device))
        top_k = upload(np.where(columns.top_k[owners] == 0, columns.vocab_size, columns.top_k[owners]), self._device)
        excluded = torch.arange(values.shape[1], device=self._device) >= top_k[:, None]
        values = values.masked_fill(excluded | (values < floor[:, None]), -torch.inf)
        values = values.masked_fill(~nucleus(values, upload(columns.top_p[owners], self._device)), -torch.inf)
        return result.index_copy(0, chosen, torch.empty_like(scaled).scatter(-1, ids, values))

    def _edit(
        self, logits: torch.Tensor, slots: Ints, output_positions: Ints, inputs: SampleInputs | None
    ) -> torch.Tensor:
        masked = inputs is not None and inputs.bitmask_rows
        if not masked and not self.columns.edited[slots].any():
            return logits
        logits = logits.clone()
        apply_bias_and_masks(logits, self.columns, slots, output_positions)
        if inputs is not None and inputs.bitmask_rows:
            apply_bitmask(self._ops.apply_token_bitmask, logits, inputs)
        self._bad_words.apply(logits, slots)
        penalized = np.flatnonzero(self.columns.penalized[slots])
        if penalized.size:
            apply_penalties(logits, self.columns, self._counts, slots, penalized)
        if self._processors is not None:
            self._processors.apply(logits, slots)
        return logits

    def _draw(self, logits: torch.Tensor, slots: Ints, output_positions: Ints, rows: Ints) -> torch.Tensor:
        device, columns = self._device, self.columns
        chosen = slots[rows]
        temperature = upload(columns.temperature[chosen][:, None], device)
        scaled = (logits if len(rows) == len(slots) else logits[upload(rows, device)]) / temperature
        draw = Draw(scaled, chosen, upload(columns.seed[chosen], device), upload(output_positions[rows], device))
        top_k, top_p = columns.top_k[chosen], columns.top_p[chosen]
        wide = top_k > MAX_CANDIDATES
        whole = top_k == 0
        methods = (
            ((top_k > 0) & ~wide, self._from_top_k),
            (wide, self._from_top_k),
            (whole & (top_p < 1.0), self._from_nucleus),
            (whole & (top_p >= 1.0), self._from_all),
        )
        tokens = torch.empty(len(rows), dtype=torch.int64, device=device)
        for mask, method in methods:
            picked = np.flatnonzero(mask)
            if picked.size:
                tokens[upload(picked, device)] = method(draw.pick(picked))
        return tokens

    def _from_top_k(self, draw: Draw) -> torch.Tensor:
        """Rows with a top_k: noise is drawn for their candidates alone."""
        top_k = self._column(self.columns.top_k, draw)
        values, ids = ordered_top_k(draw.logits, int(self.columns.top_k[draw.slots].max()))
        floor = min_p_floor(values[:, 0], self._column(self.columns.min_p, draw))
        excluded = torch.arange(values.shape[1], device=self._device) >= top_k[:, None]
        values = values.masked_fill(excluded | (values < floor[:, None]), -torch.inf)
        keep = nucleus(values, self._column(self.columns.top_p, draw))
        return self._choose(draw, values.masked_fill(~keep, -torch.inf), ids)

    def _from_nucleus(self, draw: Draw) -> torch.Tensor:
        """Rows with a nucleus alone. Where looking at a result costs nothing, most nuclei are found among few
        candidates; elsewhere the whole vocabulary is sorted rather than the device waited for."""
        vocab = draw.logits.shape[-1]
        if not self._synchronous or vocab <= MAX_CANDIDATES:
            return self._from_prefix(draw, vocab)[0]
        tokens, complete = self._from_prefix(draw, MAX_CANDIDATES)
        rest = np.flatnonzero(~complete.numpy())
        if rest.size:
            tokens[torch.from_numpy(rest)] = self._from_prefix(draw.pick(rest), vocab)[0]
        return tokens

    def _from_prefix(self, draw: Draw, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw from the nucleus as far as it lies in the `width` most likely tokens: (tokens, whether it does)."""
        top_p = self._column(self.columns.top_p, draw)
        largest = draw.logits.max(dim=-1).values
        floor = min_p_floor(largest, self._column(self.columns.min_p, draw))
        kept = draw.logits.masked_fill(draw.logits < floor[:, None], -torch.inf)
        total = torch.exp(kept - largest[:, None]).sum(-1)
        values, ids = ordered_top_k(kept, width)
        reached = torch.exp(values - largest[:, None]).cumsum(-1)[:, -1]
        keep = nucleus(values, top_p, total)
        return self._choose(draw, values.masked_fill(~keep, -torch.inf), ids), reached >= top_p * total

    def _choose(self, draw: Draw, values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The candidate with the largest logit plus noise; values [n, C] with -inf where excluded, ids [n, C]."""
        scores = values + self._noise(draw, ids)
        best = scores.max(dim=-1, keepdim=True).values
        # A row of NaN equals nothing: any valid id will do, the row is flagged as corrupted.
        return torch.where(scores == best, ids, draw.logits.shape[-1] - 1).min(dim=-1).values

    def _noise(self, draw: Draw, ids: torch.Tensor) -> torch.Tensor:
        """Noise of ids [n, C]. A whole vocabulary is drawn in order: providers have a shorter way."""
        if ids.shape[1] < draw.logits.shape[1]:
            return self._ops.gumbel_noise(draw.seeds, draw.positions, ids)
        return self._vocabulary_noise(draw).gather(-1, ids)

    def _vocabulary_noise(self, draw: Draw) -> torch.Tensor:
        ids = torch.arange(draw.logits.shape[1], device=self._device).expand(draw.logits.shape)
        return self._ops.gumbel_noise(draw.seeds, draw.positions, ids)

    def _column(self, column: npt.NDArray[Any], draw: Draw) -> torch.Tensor:
        return upload(column[draw.slots], self._device)

    def _from_all(self, draw: Draw) -> torch.Tensor:
        """Rows that may draw any token that min_p leaves."""
        values = draw.logits
        if (self.columns.min_p[draw.slots] > 0).any():
            floor = min_p_floor(values.max(dim=-1).values, self._column(self.columns.min_p, draw))
            values = values.masked_fill(values < floor[:, None], -torch.inf)
        return (values + self._vocabulary_noise(draw)).argmax(dim=-1)


def _not_finite(values: torch.Tensor) -> torch.Tensor:
    # Two calls where isfinite and its inverse are five: after a step the code of each call comes from memory anew.
    return values * 0 != 0
