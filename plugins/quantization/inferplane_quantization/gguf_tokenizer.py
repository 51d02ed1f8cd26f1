"""The tokenizer of a GGUF file as a tokenizer.json of the `tokenizers` library; knows no model and no weights.

Token ids equal llama.cpp's. What differs from the Hugging Face original follows from that: no Unicode normalization, a
space before the first word *and* after every special token where the file asks for one, spaces of user-defined tokens
matched as they are.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from inferplane_api.errors import InferplaneError
from inferplane_quantization.gguf_config import special_id
from inferplane_quantization.pretokenizers import PRE_TOKENIZERS, PreTokenizer

if TYPE_CHECKING:
    from pathlib import Path

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPECIAL_IDS = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask")
"""As the keys are spelled, `tokenizer.ggml.<name>_token_id`."""
_METASPACE = "\u2581"


class _Vocabulary:
    """The vocabulary as the file has it."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.path = path
        self._values = values
        tokens: list[str] = values["tokenizer.ggml.tokens"]
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise InferplaneError(f"{path}: a token is in the vocabulary twice", code="gguf.tokenizer")
        self.types: list[int] = self.get("token_type") or []
        self.scores: list[float] = self.get("scores") or []

    def get(self, key: str) -> Any:
        return self._values.get(f"tokenizer.ggml.{key}")

    def token(self, name: str) -> str | None:
        """The text of the token with a role ("bos", "eos", ...), or None."""
        index = special_id(self._values, name)
        return self.tokens[index] if index is not None and index < len(self.tokens) else None

    def added_tokens(self) -> list[dict[str, Any]]:
        """Tokens that are looked for before the text is cut into words."""
        special = {special_id(self._values, name) for name in _SPECIAL_IDS}
        special |= {i for i, kind in enumerate(self.types) if kind in (_CONTROL, _UNKNOWN)}
        user_defined = {i for i, kind in enumerate(self.types) if kind == _USER_DEFINED} - special
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        ids = sorted(i for i in special | user_defined if i is not None and i < len(self.tokens))
        return [{"id": i, "content": self.tokens[i], **flags, "special": i in special} for i in ids]


def write_tokenizer_json(values: dict[str, Any], path: Path, target: Path) -> None:
    """Write the tokenizer that metadata `values` of the GGUF file `path` describes.

    Raises InferplaneError naming the kind of tokenizer or of word splitting that is not known.
    """
    vocabulary = _Vocabulary(values, path)
    kind = vocabulary.get("model")
    if kind == "gpt2":
        tokenizer = _byte_level(vocabulary)
    elif kind == "llama":
        tokenizer = _sentencepiece(vocabulary)
    else:
        raise InferplaneError(
            f"{path} has a tokenizer of kind {kind!r}, which is not supported",
            code="gguf.tokenizer",
            remedy="supported: gpt2 (byte-level BPE) and llama (SentencePiece BPE); or give --tokenizer",
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False, separators=(",", ":"))
    temporary.replace(target)


def tokenizer_config(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """As tokenizer_config.json would have it."""
    vocabulary = _Vocabulary(values, path)
    config: dict[str, Any] = {
        "add_bos_token": _adds(vocabulary, "bos"),
        "add_eos_token": _adds(vocabulary, "eos"),
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (token := vocabulary.token(theirs)) is not None:
            config[f"{ours}_token"] = token
    return config


def chat_template(values: dict[str, Any]) -> str | None:
    """The chat template, where the file has one."""
    template = values.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _adds(vocabulary: _Vocabulary, name: str) -> bool:
    """Whether BOS or EOS is added to a prompt; files that leave it out mean what llama.cpp does."""
    stated = vocabulary.get(f"add_{name}_token")
    if stated is not None:
        return bool(stated)
    if name == "eos":
        return False
    return vocabulary.get("model") == "llama" or _pre_tokenizer(vocabulary).add_bos


def _pre_tokenizer(vocabulary: _Vocabulary) -> PreTokenizer:
    name = vocabulary.get("pre") or "default"
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise InferplaneError(
            f"{vocabulary.path} cuts words as {name!r} does (tokenizer.ggml.pre), which is not known",
            code="gguf.tokenizer",
            remedy=f"give --tokenizer; known: {', '.join(sorted(PRE_TOKENIZERS))}",
        )
    return found


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    pre = _pre_tokenizer(vocabulary)
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in pre.expressions
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = []
    for merge in vocabulary.get("merges") or []:
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids:
            merges.append([left, right])
    return _assemble(
        vocabulary,
        normalizer=None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        decoder=byte_level,
        merges=merges,
        ignore_merges=pre.ignore_merges,
    )


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    prefix = vocabulary.get("add_space_prefix")
    escape: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": _METASPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _METASPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    normalizer = escape
    if prefix is None or prefix:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _METASPACE}, escape]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _assemble(
        vocabulary,
        normalizer=normalizer,
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        merges=_merges_from_scores(vocabulary),
        byte_fallback=_BYTE in vocabulary.types,
        unk_token=vocabulary.token("unknown"),
    )


def _merges_from_scores(vocabulary: _Vocabulary) -> list[list[str]]:
    """SentencePiece joins the two neighbours that make the best-scored token: merges sorted by that score."""
    tokens, ids, types, scores = vocabulary.tokens, vocabulary.ids, vocabulary.types, vocabulary.scores
    if len(scores) != len(tokens):
        raise InferplaneError(f"{vocabulary.path} has no score for each token", code="gguf.tokenizer")
    apart = (_CONTROL, _USER_DEFINED, _UNKNOWN)
    found = []
    for index, token in enumerate(tokens):
        if len(token) < 2 or (types and types[index] in apart):
            continue
        score = -scores[index]
        for at in range(1, len(token)):
            left = ids.get(token[:at])
            if left is not None:
                right = ids.get(token[at:])
                if right is not None:
                    found.append((score, index, left, right))
    found.sort()
    return [[tokens[left], tokens[right]] for _, _, left, right in found]


def _assemble(
    vocabulary: _Vocabulary,
    *,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
    merges: list[list[str]],
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    unk_token: str | None = None,
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _template(vocabulary),
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": vocabulary.ids,
            "merges": merges,
        },
    }


def _template(vocabulary: _Vocabulary) -> dict[str, Any] | None:
    bos = vocabulary.token("bos") if _adds(vocabulary, "bos") else None
    eos = vocabulary.token("eos") if _adds(vocabulary, "eos") else None
    if bos is None and eos is None:
        return None

    def around(sequence: str, type_id: int) -> list[dict[str, Any]]:
        def special(token: str | None) -> list[dict[str, Any]]:
            return [{"SpecialToken": {"id": token, "type_id": type_id}}] if token is not None else []

        return [*special(bos), {"Sequence": {"id": sequence, "type_id": type_id}}, *special(eos)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary.ids[token]], "tokens": [token]}
            for token in (bos, eos)
            if token is not None
        },
    }
