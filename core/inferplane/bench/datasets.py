"""The prompts of a measurement. Knows text, tokens and files; no server and no engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("random", "sharegpt", "custom", "prefix_repetition", "sonnet")
NEED_FILE = ("sharegpt", "custom", "sonnet")

_WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city name team minute idea body back parent face level office
door health person art war history party result change morning reason research girl guy moment air teacher
force education
""".split()  # noqa: SIM905


class Sample(NamedTuple):
    """One request to make."""

    prompt: str
    prompt_tokens: int
    """What the prompt was made for; the server's count is the one that is reported."""
    output_tokens: int


class TextTokenizer(Protocol):
    """What the prompts' lengths are measured with."""

    def encode(self, text: str) -> list[int]:
        """Ids without special tokens."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Text of the ids."""
        ...

    @property
    def ordinary_ids(self) -> list[int]:
        """Ids that are no special token."""
        ...


class WordTokenizer:
    """Stands in where no tokenizer was given: a common English word is about one token of most models."""

    def encode(self, text: str) -> list[int]:
        """One id a word; unknown words share an id."""
        index = {word: number for number, word in enumerate(_WORDS)}
        return [index.get(word, 0) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        """Words."""
        return " ".join(_WORDS[number % len(_WORDS)] for number in ids)

    @property
    def ordinary_ids(self) -> list[int]:
        """One a word."""
        return list(range(len(_WORDS)))


class Shape(NamedTuple):
    """Lengths in tokens, and how they vary."""

    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    """Lengths are uniform between (1 - ratio) and (1 + ratio) times the length."""
    prefix_len: int = 0
    """Tokens that all prompts share, in front of input_len."""
    num_prefixes: int = 1


def random_samples(count: int, shape: Shape, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
    """Prompts of random tokens. Raises InvalidValue."""
    if not 0 <= shape.range_ratio < 1:
        raise InvalidValue("random_range_ratio", shape.range_ratio, "must be in [0, 1)")
    draw = np.random.default_rng(seed)
    ids = np.asarray(tokenizer.ordinary_ids)
    prefixes = [draw.choice(ids, shape.prefix_len).tolist() for _ in range(shape.num_prefixes)]
    inputs = _lengths(draw, shape.input_len, shape.range_ratio, count)
    outputs = _lengths(draw, shape.output_len, shape.range_ratio, count)
    samples = []
    for index in range(count):
        body = draw.choice(ids, inputs[index]).tolist()
        prefix = prefixes[index * shape.num_prefixes // count]
        samples.append(_fitted(prefix + body, ids, draw, tokenizer, outputs[index]))
    if shape.num_prefixes > 1:
        # Requests of one prefix must not stand side by side, or the load would be no mixture.
        samples = [samples[index] for index in draw.permutation(count)]
    return samples


def file_samples(
    name: str, path: Path, count: int, seed: int, tokenizer: TextTokenizer, output_len: int | None, shape: Shape
) -> list[Sample]:
    """`count` prompts of a file. Raises InvalidValue for a file without any, or that is not what the name says."""
    if name == "sonnet":
        samples = _sonnets(path, count, seed, tokenizer, shape)
    else:
        read = _conversations if name == "sharegpt" else _prompts
        samples = []
        for prompt, answer in read(path, seed):
            length = len(tokenizer.encode(prompt))
            wanted = output_len or (answer if isinstance(answer, int) else len(tokenizer.encode(answer)))
            if name == "sharegpt" and not _reasonable(length, wanted, fixed=output_len is not None):
                continue
            samples.append(Sample(prompt, length, wanted))
            if len(samples) == count:
                break
    if not samples:
        raise InvalidValue("dataset_path", str(path), f"holds no prompt that {name} can use")
    # A short file is gone through again, as often as needed.
    return [samples[index % len(samples)] for index in range(count)]


def _lengths(draw: np.random.Generator, length: int, ratio: float, count: int) -> list[int]:
    low, high = max(1, int(length * (1 - ratio))), max(1, int(length * (1 + ratio)))
    return [int(value) for value in draw.integers(low, high + 1, size=count)]


def _fitted(ids: list[int], ordinary: Any, draw: np.random.Generator, tokenizer: TextTokenizer, output: int) -> Sample:
    """Text whose encoding has as many tokens as the ids: decoding and encoding again merges or splits some."""
    wanted = len(ids)
    for _ in range(10):
        text = tokenizer.decode(ids)
        again = tokenizer.encode(text)
        if len(again) == wanted:
            break
        missing = wanted - len(again)
        ids = again[:wanted] if missing < 0 else again + draw.choice(ordinary, missing).tolist()
    return Sample(text, len(again), output)


def _reasonable(prompt: int, output: int, *, fixed: bool) -> bool:
    """The limits that measurements with this data set share."""
    return prompt >= 4 and (fixed or output >= 4) and prompt <= 1024 and prompt + output <= 2048


def _conversations(path: Path, seed: int) -> Iterator[tuple[str, str]]:
    entries = _read_json(path)
    if not isinstance(entries, list):
        raise InvalidValue("dataset_path", str(path), "is no list of conversations")
    for index in np.random.default_rng(seed).permutation(len(entries)):
        entry = entries[index]
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if not isinstance(turns, list) or len(turns) < 2:
            continue
        question, answer = (turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2])
        if isinstance(question, str) and isinstance(answer, str):
            yield question, answer


def _prompts(path: Path, seed: int) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt = entry["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            problem = f'line {number} is no JSON object with a "prompt"'
            raise InvalidValue("dataset_path", str(path), problem) from error
        output = entry.get("output_tokens", entry.get("max_tokens", 256))
        if not isinstance(prompt, str) or not isinstance(output, int) or output < 1:
            problem = f"line {number}: prompt must be text, output_tokens a positive number"
            raise InvalidValue("dataset_path", str(path), problem)
        yield prompt, output


def _sonnets(path: Path, count: int, seed: int, tokenizer: TextTokenizer, shape: Shape) -> list[Sample]:
    """Lines of a poem, drawn until the prompt is long enough; the prefix is always the poem's beginning."""
    lines = [line for line in _read_text(path).split("\n") if line.strip()]
    lengths = [len(tokenizer.encode(line + "\n")) for line in lines]
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    head = "Pick as many lines as you can from these poem lines:\n"
    budget = shape.input_len - len(tokenizer.encode(head))
    if budget < mean:
        raise InvalidValue("sonnet_input_len", shape.input_len, f"leaves no room for a line; above {len(head.split())}")
    fixed = min(round(shape.prefix_len / mean), len(lines))
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        more = draw.choice(len(lines), max(0, round(budget / mean) - fixed))
        text = head + "\n".join([*lines[:fixed], *(lines[index] for index in more)])
        samples.append(Sample(text, len(tokenizer.encode(text)), shape.output_len))
    return samples


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except ValueError as error:
        raise InvalidValue("dataset_path", str(path), f"is not JSON: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("dataset_path", str(path), f"cannot be read: {error}") from error
