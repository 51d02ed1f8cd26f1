"""Stop strings in a text that comes in pieces; knows no tokens.

Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977): per stop string, the length of its longest beginning
that the text ends in. Constant work per character, and the longest of them is exactly what must be held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is complete first, by its last character; of several there, the longest.

    The result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._patterns = [_Pattern(stop) for stop in dict.fromkeys(stops)]
        self._include = include
        self.beginnings = frozenset(pattern.text[0] for pattern in self._patterns)
        self.held = ""
        """The end of the text that may be the beginning of a stop string; with `include` it was given already. While it
        is empty, a piece without any of `beginnings` changes nothing."""

    def feed(self, text: str, *, armed: bool) -> tuple[str, str | None]:
        """Take a piece; return what can be given now and the stop string that is complete, if one is.

        The stop string itself is left out unless `include`; nothing after it is given. While not `armed`, a stop string
        that is completed does not count.
        """
        if not self.held and self.beginnings.isdisjoint(text):
            # Most pieces: nothing is under way, and nothing begins.
            return text, None
        for index, character in enumerate(text):
            complete = [p.text for p in self._patterns if p.advance(character)]
            if complete and armed:
                stop = max(complete, key=len)
                return self._cut(text[: index + 1], stop), stop
        whole = self.held + text
        length = max(p.matched for p in self._patterns)
        held, self.held = self.held, whole[len(whole) - length :]
        if self._include:
            return whole[len(held) :], None
        return whole[: len(whole) - length], None

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self.held = self.held, ""
        return "" if self._include else held

    def _cut(self, text: str, stop: str) -> str:
        if self._include:
            return text
        whole = self.held + text
        return whole[: len(whole) - len(stop)]


class _Pattern:
    """One stop string."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Characters of the longest proper beginning that the text ends in."""
        self._fallback = _borders(text)

    def advance(self, character: str) -> bool:
        """True when the text now ends in the stop string."""
        text, matched = self.text, self.matched
        while matched and text[matched] != character:
            matched = self._fallback[matched - 1]
        if text[matched] == character:
            matched += 1
        complete = matched == len(text)
        self.matched = self._fallback[matched - 1] if complete else matched
        return complete


def _borders(text: str) -> list[int]:
    """Per beginning of the text, the length of the longest shorter beginning that it also ends in."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders
