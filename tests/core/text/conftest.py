"""Tiny tokenizers of the kinds that models have, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from inferplane.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

TEXT = [
    "the quick brown fox jumps over the lazy dog. The end, stop now!",
    "Größe und Maß: 12345 Äpfel für 3,50 €.",
    "def f(x):\n    return x  # 你好、世界 👩‍👩‍👧‍👦",
    "stop stopping STOP. end ended ending",
]
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_end|>"]


def byte_level() -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 3, trainer)
    backend.add_tokens(["<think>", "  ", "é!"])
    return backend


def sentencepiece(prefix: bool = True) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = []
    for piece in ("\u2581", *"abcdefghijklmnopqrstuvwxyzST .,!你好"):
        vocabulary[piece] = len(vocabulary)
    for left, right in [
        ("s", "t"),
        ("o", "p"),
        ("st", "op"),
        ("\u2581", "stop"),
        ("e", "n"),
        ("en", "d"),
        ("\u2581", "\u2581"),
    ]:
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    backend = Backend(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    escape = normalizers.Replace(" ", "\u2581")
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), escape])
    else:
        backend.normalizer = escape
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(SPECIAL)
    return backend


def metaspace() -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    pieces = [(token, 0.0) for token in SPECIAL] + [
        ("\u2581", -1.0),
        ("\u2581stop", -1.5),
        ("end", -2.0),
        ("\u2581\u2581a", -3.0),
    ]
    pieces += [(c, -4.0) for c in "abcdefghijklmnopqrstuvwxyz.,!你好é"]
    backend = Backend(models.Unigram(pieces, unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(SPECIAL)
    return backend


def wordpiece() -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    words = ["the", "stop", "##ping", "##s", "end", ".", ",", "你", "é", "##é"]
    backend = Backend(models.WordPiece({w: i for i, w in enumerate(SPECIAL + words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(SPECIAL)
    return backend


KINDS = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "sentencepiece_no_prefix": lambda: sentencepiece(prefix=False),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One of each kind, loaded from its file."""
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    made = {}
    for name, make in KINDS.items():
        folder = tmp_path_factory.mktemp(name)
        make().save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config, "eos_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        made[name] = Tokenizer.from_file(folder / "tokenizer.json", config)
        made[name].folder = folder  # type: ignore[attr-defined]
    return made


@pytest.fixture(scope="session")
def folders(tokenizers: dict[str, Tokenizer]) -> dict[str, Path]:
    """Where each lies, for transformers."""
    return {name: tokenizer.folder for name, tokenizer in tokenizers.items()}  # type: ignore[attr-defined]
