"""Reads a script: which ids and log-probabilities follow which prompt, how long a step takes, what goes wrong when.

Knows no requests and no steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import msgspec

from inferplane_api.errors import InvalidValue

FaultKind = Literal["raise", "hang", "nan", "exit", "out_of_memory"]


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What follows a prompt: exactly one of tokens, echo, repeat and count_from."""

    tokens: tuple[int, ...] | None = None
    logprobs: tuple[tuple[tuple[int, float | None], ...], ...] = ()
    """Per position (id, logprob), the most likely first; None is minus infinity."""
    echo: bool = False
    repeat: int | None = None
    count_from: int | None = None

    def __post_init__(self) -> None:
        given = [self.tokens is not None, self.echo, self.repeat is not None, self.count_from is not None]
        if sum(given) != 1:
            raise ValueError("an output needs exactly one of tokens, echo, repeat, count_from")
        if self.tokens is not None and not self.tokens:
            raise ValueError("tokens must not be empty")


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that goes wrong, at a step or at an output position of a prompt."""

    kind: FaultKind
    step: int | None = None
    """Counts the steps that compute something, from 1."""
    prompt: str | None = None
    position: int = 0

    def __post_init__(self) -> None:
        if (self.step is None) == (self.prompt is None):
            raise ValueError("a fault needs either step or prompt")


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole script, as the JSON file has it."""

    default: Output | tuple[int, ...] | None = None
    prompts: dict[str, Output | tuple[int, ...]] = {}
    """Keys are the prompt's ids, joined by commas."""
    delay: float | None = None
    load_seconds: float = 0.0
    load_error: str = ""
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if () in (self.default, *self.prompts.values()):
            raise ValueError("tokens must not be empty")

    def output(self, prompt: tuple[int, ...]) -> Output | None:
        """What the script says about a prompt; None when it says nothing."""
        found = self.prompts.get(prompt_key(prompt), self.default)
        return Output(tokens=found) if isinstance(found, tuple) else found


def prompt_key(prompt: tuple[int, ...]) -> str:
    """How a script names a prompt."""
    return ",".join(map(str, prompt))


def read_script(path: str) -> Script:
    """The script in a file; an empty path is the empty script. Raises InvalidValue."""
    if not path:
        return Script()
    try:
        raw: Any = json.loads(Path(path).read_text())
        return msgspec.convert(raw, Script)
    except (OSError, ValueError) as error:
        raise InvalidValue("script", path, str(error)) from error


def token_at(
    output: Output | None, prompt: tuple[int, ...], position: int, vocab_size: int, eos: tuple[int, ...]
) -> int:
    """The id at an output position (from 0), a pure function, so that a preempted request goes on where it was."""
    if output is None:
        return _made_up(prompt, position, vocab_size, eos)
    if output.repeat is not None:
        return output.repeat
    if output.count_from is not None:
        return (output.count_from + position) % vocab_size
    if output.echo:
        return prompt[position % len(prompt)]
    tokens = output.tokens or ()
    if position >= len(tokens) and eos:
        return eos[0]
    return tokens[position % len(tokens)]


def _made_up(prompt: tuple[int, ...], position: int, vocab_size: int, eos: tuple[int, ...]) -> int:
    start = sum((index + 1) * token for index, token in enumerate(prompt))
    token = (start + 7 * position) % vocab_size
    while token in eos and vocab_size > len(eos):
        token = (token + 1) % vocab_size
    return token


def candidates_at(output: Output | None, token: int, position: int, vocab_size: int) -> Sequence[tuple[int, float]]:
    """(id, logprob) of the most likely tokens at an output position, descending.

    Where the script prescribes none, the token has probability 1/2, its successor 1/4, and so on around the vocabulary.
    """
    if output is not None and position < len(output.logprobs):
        return [(i, -math.inf if value is None else value) for i, value in output.logprobs[position]]
    return _Halving(token, vocab_size)


class _Halving(Sequence[tuple[int, float]]):
    """The made-up distribution, without a list of the whole vocabulary."""

    def __init__(self, first: int, vocab_size: int) -> None:
        self._ids = range(first, first + vocab_size)
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return self._vocab_size

    @overload
    def __getitem__(self, rank: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, rank: slice) -> list[tuple[int, float]]: ...

    def __getitem__(self, rank: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if isinstance(rank, slice):
            return [self[index] for index in range(self._vocab_size)[rank]]
        return self._ids[rank] % self._vocab_size, (rank + 1) * math.log(0.5)
