"""Prompts have the lengths that were asked for, and a file is read as what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferplane.bench.datasets import Sample, Shape, WordTokenizer, file_samples, random_samples
from inferplane.bench.tokens import FileTokenizer, load_tokenizer
from inferplane.errors import InvalidValue
from inferplane_scripted.checkpoint import byte_tokenizer

WORDS = WordTokenizer()


@pytest.fixture
def tokenizer(tmp_path: Path) -> FileTokenizer:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_tokenizer(()))
    return load_tokenizer(str(tmp_path))


def test_words_are_tokens() -> None:
    samples = random_samples(20, Shape(input_len=30, output_len=9), 0, WORDS)
    assert {len(sample.prompt.split()) for sample in samples} == {30}
    assert {sample.output_tokens for sample in samples} == {9}
    assert len({sample.prompt for sample in samples}) == 20


def test_the_tokenizers_own_lengths(tokenizer: FileTokenizer) -> None:
    """Random bytes are seldom text: decoding and encoding them again changes their number."""
    samples = random_samples(10, Shape(input_len=64, output_len=1), 1, tokenizer)
    assert all(sample.prompt_tokens == len(tokenizer.encode(sample.prompt)) for sample in samples)
    assert all(abs(sample.prompt_tokens - 64) <= 6 for sample in samples)
    assert not any("<|" in sample.prompt for sample in samples)


def test_the_range() -> None:
    samples = random_samples(400, Shape(input_len=10, output_len=100, range_ratio=0.5), 0, WORDS)
    assert {sample.prompt_tokens for sample in samples} == set(range(5, 16))
    assert all(50 <= sample.output_tokens <= 150 for sample in samples)


def test_the_seed_decides() -> None:
    shape = Shape(input_len=8)
    assert random_samples(3, shape, 5, WORDS) == random_samples(3, shape, 5, WORDS)
    assert random_samples(3, shape, 5, WORDS) != random_samples(3, shape, 6, WORDS)


def test_shared_prefixes() -> None:
    samples = random_samples(40, Shape(input_len=5, prefix_len=7, num_prefixes=4), 0, WORDS)
    prefixes = [tuple(sample.prompt.split()[:7]) for sample in samples]
    assert sorted(prefixes.count(each) for each in set(prefixes)) == [10, 10, 10, 10]
    assert prefixes != sorted(prefixes), "one prefix after the other is no mixture"


def test_a_ratio_of_one_is_refused() -> None:
    with pytest.raises(InvalidValue, match="random_range_ratio"):
        random_samples(1, Shape(range_ratio=1.0), 0, WORDS)


def read(name: str, path: Path, count: int, output_len: int | None = None, shape: Shape | None = None) -> list[Sample]:
    return file_samples(name, path, count, 0, WORDS, output_len, shape or Shape())


def test_lines_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a b"}\n\n{"prompt": "c", "output_tokens": 7}\n')
    assert read("custom", path, 3) == [Sample("a b", 2, 256), Sample("c", 1, 7), Sample("a b", 2, 256)]
    assert {sample.output_tokens for sample in read("custom", path, 2, 5)} == {5}


@pytest.mark.parametrize(
    "text", ["", "[1]\n", '{"text": "x"}\n', '{"prompt": 1}\n', '{"prompt": "x", "output_tokens": 0}\n']
)
def test_bad_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidValue, match="dataset_path"):
        read("custom", path, 1)


def test_conversations(tmp_path: Path) -> None:
    def turns(*texts: str) -> dict:
        return {"conversations": [{"from": "human", "value": text} for text in texts]}

    path = tmp_path / "s.json"
    good = turns("one two three four five", "six seven eight nine", "ten")
    path.write_text(json.dumps([turns("short", "answer here is long"), turns("a b c d"), {"other": 1}, good]))
    assert read("sharegpt", path, 2) == [Sample("one two three four five", 5, 4)] * 2


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_bad_conversations(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InvalidValue, match="dataset_path"):
        read("sharegpt", path, 1)


def test_poems(tmp_path: Path) -> None:
    path = tmp_path / "sonnet.txt"
    path.write_text("".join(f"line {number} of ten words or so it is now\n" for number in range(100)))
    samples = read("sonnet", path, 5, shape=Shape(input_len=110, output_len=3, prefix_len=50))
    assert all(abs(sample.prompt_tokens - 110) < 10 for sample in samples)
    lines = [sample.prompt.split("\n")[1:6] for sample in samples]
    assert all(each == [f"line {number} of ten words or so it is now" for number in range(5)] for each in lines)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        read("custom", tmp_path / "none", 1)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))
