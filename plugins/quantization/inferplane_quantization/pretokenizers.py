"""How byte-level vocabularies cut text into words, by `tokenizer.ggml.pre`; knows no vocabulary.

The expressions are those of the models' own tokenizer.json files; the names, and which expressions go with them, are
llama.cpp's. They are applied one after the other, each to the pieces that the one before it left.
"""

from __future__ import annotations

from typing import NamedTuple


class PreTokenizer(NamedTuple):
    """The word splitting of one family of vocabularies."""

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    """True: a whole word that is in the vocabulary is one token, whatever the merges say."""
    add_bos: bool = False
    """Where the file does not say."""


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CL100K_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + "%s" + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%(suffix)s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%(suffix)s"
    r"|\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)

_GPT2 = PreTokenizer((_GPT2_WORDS,))
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2_WORDS))
_THREE_DIGITS = _CL100K_WORDS % "{1,3}"
_LLAMA3 = PreTokenizer((_THREE_DIGITS,), ignore_merges=True, add_bos=True)
_CL100K = PreTokenizer((_THREE_DIGITS,))
_QWEN2 = PreTokenizer((_CL100K_WORDS % "",))
_GPT4O = PreTokenizer((_CASED_WORDS % {"suffix": f"{_CONTRACTIONS}?", "digits": "{1,3}"},))
_TEKKEN = PreTokenizer((_CASED_WORDS % {"suffix": "", "digits": ""},), ignore_merges=True, add_bos=True)
_DEEPSEEK3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",  # noqa: RUF001
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
    )
)
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"))
_QWEN35 = PreTokenizer(
    (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES,)
)
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, r"[0-9][0-9][0-9]"))
_SEED_CODER = PreTokenizer((_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES,))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "roberta-bpe",
            "gigachat",
        ),
        _GPT2,
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        _DIGITS_THEN_GPT2,
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        _QWEN2,
    ),
    "qwen35": _QWEN35,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "tekken": _TEKKEN,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "deepseek-coder": _DEEPSEEK_CODER,
    "falcon": _FALCON,
    "seed-coder": _SEED_CODER,
}
"""`tokenizer.ggml.pre` to the splitting."""
