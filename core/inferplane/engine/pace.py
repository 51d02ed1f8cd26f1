"""How long a step should take, from its tokens and the steps before it. Knows no device."""

from __future__ import annotations

_FORGET = 0.9
"""What a slow step's pace is worth one step later: one hiccup does not blind the watch for long."""


class Pace:
    """Seconds per token of the slowest recent step. Long prompts run at a better pace than single tokens, so that the
    expectation errs on the patient side."""

    def __init__(self) -> None:
        self._seconds_per_token = 0.0

    def learn(self, seconds: float, num_tokens: int) -> None:
        """A step of so many tokens has taken so long."""
        self._seconds_per_token = max(seconds / max(1, num_tokens), _FORGET * self._seconds_per_token)

    def expect(self, num_tokens: int) -> float:
        """Seconds that a step of so many tokens should take at most; 0 while nothing was learnt."""
        return self._seconds_per_token * num_tokens
