"""How the decoders of the `tokenizers` library turn one token into bytes; knows no vocabulary and no text.

The library decodes whole texts. The decoders of generative models work token by token, so the bytes of each can be
had exactly and a text can be built as its tokens come.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_METASPACE = "\u2581"
_FALLBACK = re.compile(r"^<0x([0-9A-Fa-f]{2})>\Z")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: the printable ones themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


class TokenDecoding(NamedTuple):
    """One token to bytes."""

    byte_level: bool
    """True: characters are GPT-2's stand-ins for bytes."""
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    """True: "<0x0A>" is the byte 10."""
    strip_left: int = 0
    """Spaces taken off the start of a text."""
    first_without_marks: bool = False
    """True: word marks in a text's first token give no space."""

    def token_bytes(self, token: str) -> bytes:
        """The bytes of a token that is not the first of its text."""
        if self.byte_level:
            try:
                return bytes([_ALPHABET[c] for c in token])
            except KeyError:  # an added token, spelled as it is
                return token.encode("utf-8", errors="replace")
        for mark, text in self.replacements:
            token = token.replace(mark, text)
        if self.byte_fallback and (byte := fallback_byte(token)) is not None:
            return bytes((byte,))
        return token.encode("utf-8", errors="replace")

    def is_byte(self, token: str) -> bool:
        """True for a token that stands for one raw byte."""
        return self.byte_fallback and fallback_byte(token) is not None


def fallback_byte(token: str) -> int | None:
    """The byte of a token like "<0x0A>", else None."""
    match = _FALLBACK.match(token)
    return int(match[1], 16) if match else None


def read_decoding(decoder: dict[str, Any] | None) -> TokenDecoding | None:
    """The token-wise form of a decoder as tokenizer.json has it, or None where it has none."""
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return TokenDecoding(byte_level=True)
    if kinds == ["Metaspace"]:
        strips = steps[0].get("prepend_scheme", "always") != "never" and steps[0].get("add_prefix_space", True)
        mark = steps[0].get("replacement", _METASPACE)
        return TokenDecoding(byte_level=False, replacements=((mark, " "),), first_without_marks=strips)
    return _sentencepiece(steps, kinds)


def _sentencepiece(steps: list[dict[str, Any]], kinds: list[str]) -> TokenDecoding | None:
    """Replace…, ByteFallback, Fuse, Strip: each at most in this order."""
    order = ("Replace", "ByteFallback", "Fuse", "Strip")
    if not all(kind in order for kind in kinds) or [order.index(k) for k in kinds] != sorted(map(order.index, kinds)):
        return None
    # Without Fuse a Strip would work on every token.
    if "Fuse" not in kinds or kinds.count("Strip") > 1:
        return None
    replacements, strip = [], 0
    for step in steps:
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None:
                return None
            replacements.append((pattern, step["content"]))
        elif step["type"] == "Strip":
            if step["content"] != " " or step["stop"] != 0:
                return None
            strip = step["start"]
    return TokenDecoding(
        byte_level=False,
        replacements=tuple(replacements),
        byte_fallback="ByteFallback" in kinds,
        strip_left=strip,
    )
