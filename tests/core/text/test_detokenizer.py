"""Increments put together are the decoding of the whole, however the tokens come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplane.text.detokenizer import Detokenizer
from inferplane.text.tokenizer import Tokenizer
from inferplane_api import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKEN_WISE = ["byte_level", "sentencepiece", "sentencepiece_no_prefix", "metaspace"]
IDS = st.lists(st.integers(0, 420), max_size=24)
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=24)
EXAMPLES = settings(max_examples=150, deadline=None)


def stream(
    tokenizer: Tokenizer, ids: Sequence[int], chunks: Sequence[int], prompt: Sequence[int] = (), **params: Any
) -> tuple[str, str | None, int]:
    """(text, stop string, tokens used) of the ids pushed in chunks of the given sizes, cycled."""
    detokenizer = Detokenizer(tokenizer, SamplingParams(max_tokens=None, **params), prompt)
    text, used, at, turn = "", 0, 0, 0
    while at < len(ids):
        size = chunks[turn % len(chunks)]
        increment = detokenizer.push(ids[at : at + size])
        text += increment.text
        used += increment.num_tokens_used
        at, turn = at + size, turn + 1
        if increment.stop is not None:
            assert detokenizer.finish() == ""
            return text, increment.stop, used
    return text + detokenizer.finish(), detokenizer.stop, used


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_increments_equal_the_library_s_decoding(kind: str, skip: bool, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]

    @EXAMPLES
    @given(ids=IDS, chunks=CHUNKS)
    def check(ids: list[int], chunks: list[int]) -> None:
        text, stop, used = stream(tokenizer, ids, chunks, skip_special_tokens=skip)
        assert text == tokenizer.decode_whole(ids, skip_special_tokens=skip)
        assert (stop, used) == (None, len(ids))

    check()


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece_no_prefix"])
def test_increments_equal_the_library_s_decoding_with_bytes(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    """Runs of byte tokens that are valid UTF-8, or all invalid; mixed runs are the next test's."""
    tokenizer = tokenizers[kind]
    byte = {b: tokenizer.token_to_id(f"<0x{b:02X}>") for b in range(256)}
    pieces = [i for i in range(tokenizer.vocab_size) if not (tokenizer.id_to_token(i) or "").startswith("<0x")]
    characters = st.characters(exclude_categories=("Cs",)).map(lambda c: [byte[b] for b in c.encode()])
    broken = st.lists(st.integers(0x80, 0xBF), min_size=1, max_size=4).map(lambda bs: [byte[b] for b in bs])
    # A piece after each run keeps runs of different kinds apart.
    piece = st.sampled_from([i for i in pieces if i > 3])
    runs = st.tuples(st.one_of(characters, broken, piece.map(lambda i: [i])), piece)

    @EXAMPLES
    @given(parts=st.lists(runs, max_size=8), chunks=CHUNKS)
    def check(parts: list[tuple[list[int], int]], chunks: list[int]) -> None:
        ids = [index for run, after in parts for index in (*run, after)]
        assert stream(tokenizer, ids, chunks)[0] == tokenizer.decode_whole(ids)

    check()


def test_bytes_that_are_no_characters_equal_sentencepiece(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["stop the end"] * 50), model_prefix=str(tmp_path / "m"), vocab_size=280,
        model_type="bpe", byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    tokenizer = tokenizers["sentencepiece_no_prefix"]
    names = {b: f"<0x{b:02X}>" for b in range(256)}
    # A trained piece before and after, as SentencePiece strips a text's first space.
    around = "end"
    before = [tokenizer.token_to_id(c) for c in around]

    @EXAMPLES
    @given(data=st.lists(st.one_of(st.integers(0x80, 0xFF), st.integers(0x61, 0x7A)), max_size=8), chunks=CHUNKS)
    def check(data: list[int], chunks: list[int]) -> None:
        expected = reference.decode_pieces([*around, *(names[b] for b in data), "e"])
        ids = [*before, *(tokenizer.token_to_id(names[b]) for b in data), tokenizer.token_to_id("e")]
        assert stream(tokenizer, [i for i in ids if i is not None], chunks)[0] == expected

    check()


@pytest.mark.parametrize("kind", [*TOKEN_WISE, "wordpiece"])
def test_stream_equals_decode(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]

    @EXAMPLES
    @given(ids=IDS, chunks=CHUNKS, skip=st.booleans())
    def check(ids: list[int], chunks: list[int], skip: bool) -> None:
        assert stream(tokenizer, ids, chunks, skip_special_tokens=skip)[0] == tokenizer.decode(ids, skip)

    check()


def test_decoders_without_a_token_wise_form_equal_the_library(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    assert tokenizer.decoding is None
    ids = [i for i in tokenizer.encode("the stopping end. stops, 你") if i != tokenizer.unk_token_id]
    assert tokenizer.decode(ids) == tokenizer.decode_whole(ids) == "the stopping end . stops , 你"


def test_incomplete_characters_are_held_back(tokenizers: dict[str, Tokenizer]) -> None:
    for kind in ("byte_level", "sentencepiece_no_prefix"):
        tokenizer = tokenizers[kind]
        ids = tokenizer.encode("ꙮ", add_special_tokens=False)
        detokenizer = Detokenizer(tokenizer, SamplingParams())
        assert [detokenizer.push([index]).text for index in ids] == ["", "", "ꙮ"]
        cut = Detokenizer(tokenizer, SamplingParams())
        assert cut.push(ids[:2]).text == ""
        assert set(cut.finish()) == {"\ufffd"}


def test_an_answer_goes_on_from_the_prompt(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["sentencepiece"]
    ids = tokenizer.encode("stop", add_special_tokens=False)
    assert stream(tokenizer, ids, [1])[0] == "stop"
    prompt = tokenizer.encode("the end", add_special_tokens=False)
    assert stream(tokenizer, ids, [1], prompt)[0] == " stop"
    assert stream(tokenizer, ids, [1], [0])[0] == "stop", "after BOS alone the text starts"
    eye = tokenizers["byte_level"].encode("ꙮ")
    assert stream(tokenizers["byte_level"], eye[1:], [1], eye[:1])[0] == "ꙮ"


def test_special_tokens_are_left_out_or_kept(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    ids = tokenizer.encode("a<|im_end|><think>b")
    assert stream(tokenizer, ids, [1])[0] == "a<think>b"
    assert stream(tokenizer, ids, [1], skip_special_tokens=False)[0] == "a<|im_end|><think>b"


def test_spaces_between_special_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    ids = [0, 3, *tokenizer.encode("the end", add_special_tokens=False), 1, 1]
    assert stream(tokenizer, ids, [1], skip_special_tokens=False)[0] == "<s> <|im_end|> the end </s> </s>"
    joined = stream(tokenizer, ids, [1], skip_special_tokens=False, spaces_between_special_tokens=False)[0]
    assert joined == "<s><|im_end|> the end </s></s>"


def test_a_stop_token_s_text_is_left_out(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    ids = tokenizer.encode("a b")
    last = tokenizer.decode(ids[-1:])
    without = Detokenizer(tokenizer, SamplingParams())
    assert without.push(ids, stopped_by_token=True) == ("a b".removesuffix(last), None, len(ids))
    kept = Detokenizer(tokenizer, SamplingParams(include_stop_str_in_output=True))
    assert kept.push(ids, stopped_by_token=True).text == "a b"


def test_nothing_is_decoded_without_a_tokenizer_or_when_not_asked(tokenizers: dict[str, Tokenizer]) -> None:
    for detokenizer in (
        Detokenizer(None, SamplingParams()),
        Detokenizer(tokenizers["byte_level"], SamplingParams(detokenize=False)),
    ):
        assert detokenizer.push([5, 6, 7]) == ("", None, 3)
        assert detokenizer.finish() == ""


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_stop_strings_against_the_whole_text(kind: str, include: bool, tokenizers: dict[str, Tokenizer]) -> None:
    """The truth looks at the text of ever more tokens, character by character."""
    tokenizer = tokenizers[kind]

    def truth(ids: list[int], stops: list[str], min_tokens: int) -> tuple[str, str | None, int]:
        held_off = 0
        for count in range(1, len(ids) + 1):
            text = whole(ids[:count])
            if count <= min_tokens:
                held_off = len(text)
                continue
            for end in range(held_off + 1, len(text) + 1):
                found = sorted((s for s in stops if text[:end].endswith(s)), key=len)
                if found:
                    stop = found[-1]
                    return text[:end] if include else text[: end - len(stop)], stop, count
        return tokenizer.decode(ids), None, len(ids)

    def whole(ids: list[int]) -> str:
        """Without what is still held back as part of a character."""
        detokenizer = Detokenizer(tokenizer, SamplingParams())
        return detokenizer.push(ids).text

    texts = st.lists(st.sampled_from(["stop", "sto", "op", "end", " ", "s", "👍", "é", "<|im_end|>"]), max_size=8)

    @EXAMPLES
    @given(
        words=texts,
        chunks=CHUNKS,
        stops=st.lists(
            st.sampled_from(["stop", "top", "s", "end", "d s", "👍", "stopsto", "pé"]), min_size=1, max_size=3
        ),
        min_tokens=st.integers(0, 6),
    )
    def check(words: list[str], chunks: list[int], stops: list[str], min_tokens: int) -> None:
        ids = tokenizer.encode("".join(words), add_special_tokens=False)
        result = stream(
            tokenizer, ids, chunks, stop=tuple(stops), include_stop_str_in_output=include, min_tokens=min_tokens
        )
        assert result == truth(ids, stops, min_tokens)

    check()


def test_only_what_may_begin_a_stop_string_is_held_back(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    one: Callable[[str], int] = lambda c: tokenizer.encode(c)[0]  # noqa: E731
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("xyz",)))
    assert [detokenizer.push([one(c)]).text for c in "axyxyq"] == ["a", "", "", "xy", "", "xyq"]
    assert detokenizer.push([one("x")]).text == ""
    assert detokenizer.finish() == "x"


def test_after_a_stop_string_nothing_is_taken(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("b",)))
    ids = [tokenizer.encode(c)[0] for c in "abc"]
    assert detokenizer.push(ids) == ("a", "b", 2)
    assert detokenizer.push(ids) == ("", "b", 0)
    assert detokenizer.finish() == ""
