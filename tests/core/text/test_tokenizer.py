"""Token ids and texts against transformers on tiny tokenizers of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.errors import InferplaneError
from inferplane.text.tokenizer import Tokenizer
from inferplane_api.checkpoint import CheckpointCard

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ["byte_level", "sentencepiece", "sentencepiece_no_prefix", "metaspace", "wordpiece"]
TEXTS = [
    "", " ", "  ", "\n", "\t\t", "stop", " stop", "  stop  ", "the stopping end.", "a\n\nb", "12345 67", "Größe 3,50 €",
    "你好、世界", "👩‍👩‍👧‍👦!", "<s>x</s>", "a<|im_end|>\nb", "<think>a</think>", "é! e\u0301", "\x00\x7f", "x" * 50,
]  # fmt: skip


@pytest.fixture(scope="module")
def references(folders: dict[str, Path]) -> dict[str, Any]:
    from transformers import PreTrainedTokenizerFast

    return {name: PreTrainedTokenizerFast.from_pretrained(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_equal_transformers(
    kind: str, tokenizers: dict[str, Tokenizer], references: dict[str, Any]
) -> None:
    ours, theirs = tokenizers[kind], references[kind]
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected, text
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_equals_transformers(
    kind: str, tokenizers: dict[str, Tokenizer], references: dict[str, Any]
) -> None:
    ours, theirs = tokenizers[kind], references[kind]
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token_id, ours.eos_token_id, ours.unk_token_id) == (
        theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id,
    )  # fmt: skip
    ids = list(range(ours.vocab_size))
    assert ours.ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert all(ours.token_to_id(token) == index for index, token in enumerate(ours.ids_to_tokens(ids)))
    assert {i for i in ids if ours.is_special(i)} == set(theirs.all_special_ids) | {3}
    assert ours.id_to_token(ours.vocab_size) is None
    assert ours.id_to_token(-1) is None
    assert ours.token_to_id("no such token") is None


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_no_prefix"])
def test_bytes_of_tokens_make_up_the_text(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[kind]
    for text in TEXTS:
        if text.startswith("é!"):
            continue  # an added token spelled in the byte alphabet: the library decodes it as bytes, and so do we
        ids = tokenizer.encode(text)
        joined = b"".join(tokenizer.token_bytes(index) for index in ids)
        unknown = tokenizer.unk_token_id in ids
        assert unknown or joined == text.encode(), text


def test_bytes_of_parts_of_characters(tokenizers: dict[str, Tokenizer]) -> None:
    eye = "ꙮ".encode()
    byte_level, fallback = tokenizers["byte_level"], tokenizers["sentencepiece"]
    assert [byte_level.token_bytes(i) for i in byte_level.encode("ꙮ")] == [bytes((b,)) for b in eye]
    ids = [fallback.token_to_id(f"<0x{b:02X}>") for b in eye]
    assert [fallback.token_bytes(i) for i in ids if i is not None] == [bytes((b,)) for b in eye]
    stop = fallback.token_to_id("\u2581stop")
    assert stop is not None
    assert fallback.token_bytes(stop) == b" stop"
    assert fallback.token_bytes(10**6) == b""
    thinking = byte_level.token_to_id("<think>")
    assert thinking is not None
    assert byte_level.token_bytes(thinking) == b"<think>"


def test_ids_outside_the_vocabulary_decode_to_nothing(tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers.values():
        ids = tokenizer.encode("stop", add_special_tokens=False)
        assert tokenizer.decode([10**6, *ids, -1, 10**6]) == tokenizer.decode(ids)


def test_lone_surrogates_are_taken(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a\ufffdb"
    assert tokenizer.encode("\ud83d\udc4d") == tokenizer.encode("👍")


def test_special_tokens_are_added_when_asked(make_tiny_tokenizer: Callable[[Path], None], tmp_path: Path) -> None:
    import tokenizers as library

    make_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    backend = library.Tokenizer.from_file(str(file))
    backend.post_processor = library.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(file))
    tokenizer = Tokenizer.from_file(file)
    plain = tokenizer.encode("the thing", add_special_tokens=False)
    assert tokenizer.encode("the thing") == [1, *plain]
    assert len(plain) > 2, "a file's truncation and padding are not applied"
    assert tokenizer.decode(plain) == "the thing"


def test_truncation_keeps_the_beginning_and_the_special_tokens(
    tokenizers: dict[str, Tokenizer], folders: dict[str, Path], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = Backend.from_file(str(folders["wordpiece"] / "tokenizer.json"))
    ends = [("<s>", backend.token_to_id("<s>")), ("</s>", backend.token_to_id("</s>"))]
    backend.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours, theirs = Tokenizer.from_file(tmp_path / "tokenizer.json"), PreTrainedTokenizerFast(tokenizer_object=backend)
    texts = ["the stopping end.", "", "the", "stops, " * 9, "\ud800 the end"]
    plain = [text.replace("\ud800", "\ufffd") for text in texts]
    for most in (2, 3, 5, 8, 100):
        expected = [theirs(text, truncation=True, max_length=most)["input_ids"] for text in plain]
        assert ours.encode_truncated(texts, most) == expected
        bare = [ids[:most] for ids in ours.encode_batch(texts, add_special_tokens=False)]
        assert ours.encode_truncated(texts, most, add_special_tokens=False) == bare
    assert ours.encode_truncated(["the end"], 1) == [[ends[0][1]]]
    assert len(ours.encode("stops, " * 99)) > 100, "the shared tokenizer itself still truncates nothing"


def test_a_checkpoint_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    weights = str(tmp_path / "model.safetensors")
    with pytest.raises(InferplaneError, match="--tokenizer") as caught:
        Tokenizer.from_card(CheckpointCard(config={}, files=(weights,)))
    assert caught.value.code == "tokenizer.none"
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(InferplaneError, match="save_pretrained") as caught:
        Tokenizer.from_card(CheckpointCard(config={}, files=(weights,)))
    assert caught.value.code == "tokenizer.sentencepiece"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(InferplaneError, match=r"tokenizer\.json"):
        Tokenizer.from_card(CheckpointCard(config={}, tokenizer_json=str(file)))


def test_no_torch_is_imported() -> None:
    import subprocess
    import sys

    code = (
        "import sys, inferplane.text.tokenizer, inferplane.text.chat_template, inferplane.text.detokenizer, "
        "inferplane.text.generation_defaults; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
