"""Beam search over log-probabilities that an engine reports: which beams go on, and which are the best. Sends nothing.

Scores, candidates, early stopping and their order are those of transformers' beam search: each step takes the most
likely 2 (or 1 + number of end tokens, if more) times width continuations of all beams; those that end are kept by
score / length ** length_penalty, the best others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from inferplane.errors import InvalidValue
from inferplane.messages import Request
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BEAM_WIDTH = 256
MAX_LENGTH_PENALTY = 16
"""Lengths to this power stay numbers."""
REFUSED = (
    "bad_words",
    "bad_words_token_ids",
    "extra_args",
    "frequency_penalty",
    "logprob_token_ids",
    "presence_penalty",
    "repetition_detection",
    "stop",
)
"""Fields of SamplingParams that look at the output as a whole or change how a token is drawn."""

EarlyStopping = bool | Literal["never"]


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to search. Raises InvalidValue on construction."""

    beam_width: int
    """Beams, and sequences that are returned."""
    length_penalty: float = 1.0
    """Sequences are ranked by sum of log-probabilities / tokens ** length_penalty."""
    early_stopping: EarlyStopping = False
    """True: end with `beam_width` finished sequences; False: when the best running beam, ranked at its present length,
    is worse than all of them; "never": the same, ranked at max_tokens where length_penalty is above 0."""
    max_tokens: int | None = 16
    """None: the rest of the context."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            raise InvalidValue("beam_width", self.beam_width, f"must be between 1 and {MAX_BEAM_WIDTH}")
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:
            problem = f"must be between -{MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}"
            raise InvalidValue("length_penalty", self.length_penalty, problem)
        if self.early_stopping not in (True, False, "never"):
            raise InvalidValue("early_stopping", self.early_stopping, 'must be true, false or "never"')
        self.sampling()

    def sampling(self) -> SamplingParams:
        """The rest, greedy."""
        own = {"beam_width", "length_penalty", "early_stopping"}
        shared = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in own}
        return SamplingParams(temperature=0.0, **shared)


class _Beam(NamedTuple):
    tokens: tuple[int, ...]
    score: float
    """Sum of log-probabilities."""
    entries: tuple[TokenLogprobs, ...]


class BeamSequence(NamedTuple):
    """A finished sequence, its end token included."""

    token_ids: list[int]
    cumulative_logprob: float
    score: float
    """cumulative_logprob / tokens ** length_penalty."""
    logprobs: list[TokenLogprobs]
    """Per token, with as many of the most likely ones as `logprobs` asked for."""
    finish_reason: Literal["stop", "length"]
    stop_reason: int | None
    """The stop token, where it is no EOS."""


class BeamSearch:
    """The search for one prompt. Until `done`: send `requests()`, pass what they report to `advance`."""

    def __init__(self, search: BeamSearchParams, request: Request) -> None:
        """request: as `build_requests` makes it of `search.sampling()`."""
        params = request.params
        assert params.max_tokens is not None, "build_requests resolves it"
        self._search = search
        self._request = request
        self._max_tokens = params.max_tokens
        self._eos = frozenset(request.eos_token_ids)
        self._ends = self._eos | frozenset(params.stop_token_ids)
        self._keep = max(2, 1 + len(self._ends)) * search.beam_width
        self._running = [_Beam((), 0.0, ())]
        self._finished: list[BeamSequence] = []
        self._round = 0
        self.done = self._max_tokens == 0

    def requests(self) -> list[Request]:
        """One for each running beam, for one token and the log-probabilities of the most likely ones."""
        params, beams = self._request.params, self._running
        wanted = msgspec.structs.replace(
            params,
            max_tokens=1,
            min_tokens=int(self._round < params.min_tokens),
            logprobs=max(self._keep, self._search.logprobs or 0),
            # What the edits leave, as probabilities.
            logprobs_mode="processed_logprobs",
            prompt_logprobs=params.prompt_logprobs if self._round == 0 else None,
            detokenize=False,
        )
        return [
            msgspec.structs.replace(
                self._request,
                request_id=f"{self._request.request_id}-{self._round}-{index}",
                prompt_token_ids=[*self._request.prompt_token_ids, *beam.tokens],
                params=wanted,
            )
            for index, beam in enumerate(beams)
        ]

    def advance(self, reports: Sequence[TokenLogprobs]) -> None:
        """What each request reported for its token, in their order."""
        candidates = self._candidates(reports)
        self._round += 1
        running = []
        for rank, (score, beam, position) in enumerate(candidates):
            token = reports[beam].top_ids[position]
            grown = self._grown(self._running[beam], reports[beam], position, score)
            if token not in self._ends and self._round < self._max_tokens:
                running.append(grown)
            elif rank < self._search.beam_width:
                self._finish(grown)
        self._running = running[: self._search.beam_width]
        self.done = not self._running or (self._full and self._search.early_stopping is True) or not self._can_improve()

    def best(self) -> list[BeamSequence]:
        """The finished sequences, best first."""
        return self._finished

    @property
    def _full(self) -> bool:
        return len(self._finished) >= self._search.beam_width

    def _candidates(self, reports: Sequence[TokenLogprobs]) -> list[tuple[float, int, int]]:
        """(sum of log-probabilities, beam, position among its most likely tokens), best first."""
        found = [
            (beam.score + logprob, index, position)
            for index, (beam, report) in enumerate(zip(self._running, reports, strict=True))
            for position, logprob in enumerate(report.top_logprobs)
            if logprob > -1e9
        ]
        found.sort(key=lambda candidate: (-candidate[0], candidate[1], reports[candidate[1]].top_ids[candidate[2]]))
        return found[: self._keep]

    def _grown(self, beam: _Beam, report: TokenLogprobs, position: int, score: float) -> _Beam:
        token, logprob = report.top_ids[position], report.top_logprobs[position]
        shown = self._search.logprobs or 0
        entry = TokenLogprobs(token, logprob, position + 1, report.top_ids[:shown], report.top_logprobs[:shown])
        return _Beam((*beam.tokens, token), score, (*beam.entries, entry))

    def _finish(self, beam: _Beam) -> None:
        token = beam.tokens[-1]
        ended = token in self._ends
        finished = BeamSequence(
            token_ids=list(beam.tokens),
            cumulative_logprob=beam.score,
            score=self._ranked(beam.score, len(beam.tokens)),
            logprobs=list(beam.entries),
            finish_reason="stop" if ended else "length",
            stop_reason=token if ended and token not in self._eos else None,
        )
        self._finished.append(finished)
        self._finished.sort(key=lambda sequence: -sequence.score)
        del self._finished[self._search.beam_width :]

    def _ranked(self, score: float, num_tokens: int) -> float:
        return float(score / num_tokens**self._search.length_penalty)

    def _can_improve(self) -> bool:
        """Whether the best running beam could still beat the worst finished one."""
        if not self._full:
            return True
        optimistic = self._search.early_stopping == "never" and self._search.length_penalty > 0
        length = self._max_tokens if optimistic else self._round
        return self._ranked(self._running[0].score, length) > self._finished[-1].score
