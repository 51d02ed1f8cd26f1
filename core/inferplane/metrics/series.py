"""Counters and histograms in cells, and families of them as Prometheus text; knows no name."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inferplane.cells import Cells


class Counter:
    """One number that only grows."""

    __slots__ = ("_at", "_cells", "_own")

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._own = cells.own
        self._at = cells.take(1)

    def inc(self, amount: float = 1.0) -> None:
        """Add."""
        self._own[self._at] += amount

    @property
    def value(self) -> float:
        """Of all processes."""
        return self._cells.total(self._at)


class Counts(NamedTuple):
    """A histogram at rest: what fell between two bounds and above the last, and the sum of the values."""

    bounds: Sequence[float]
    counts: Sequence[float]
    sum: float


class Histogram:
    """Counts of values up to each of some bounds. An observation takes a fraction of a microsecond."""

    __slots__ = ("_at", "_bounds", "_cells", "_own", "_sum")

    def __init__(self, cells: Cells, bounds: Sequence[float]) -> None:
        self._cells = cells
        self._own = cells.own
        self._bounds = bounds
        self._at = cells.take(len(bounds) + 1)
        self._sum = cells.take(1)

    def observe(self, value: float, weight: float = 1.0) -> None:
        """Count a value, as often as `weight` says."""
        own = self._own
        own[self._at + bisect_left(self._bounds, value)] += weight
        own[self._sum] += value * weight

    @property
    def counts(self) -> Counts:
        """Of all processes."""
        total = self._cells.total
        cells = range(self._at, self._at + len(self._bounds) + 1)
        return Counts(self._bounds, [total(cell) for cell in cells], total(self._sum))


class Family(NamedTuple):
    """All series of one name."""

    name: str
    kind: str
    """"gauge", "counter" or "histogram"."""
    text: str
    series: Sequence[tuple[Sequence[tuple[str, str]], float | Counts]]
    """(labels, value)."""

    def lines(self, name: str) -> Iterator[str]:
        """As Prometheus text, under this name."""
        shown = name + "_total" if self.kind == "counter" else name
        yield f"# HELP {shown} {_escaped(self.text)}"
        yield f"# TYPE {shown} {self.kind}"
        for labels, value in self.series:
            pairs = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels)
            if isinstance(value, Counts):
                yield from _histogram_lines(name, pairs, value)
            else:
                yield f"{shown}{{{pairs}}} {float(value)!r}" if pairs else f"{shown} {float(value)!r}"


def _histogram_lines(name: str, pairs: str, value: Counts) -> Iterator[str]:
    within = f"{pairs}," if pairs else ""
    count = 0.0
    for bound, count in zip((*map(float, value.bounds), "+Inf"), accumulate(value.counts), strict=True):
        yield f'{name}_bucket{{{within}le="{bound}"}} {float(count)!r}'
    yield f"{name}_count{{{pairs}}} {float(count)!r}"
    yield f"{name}_sum{{{pairs}}} {float(value.sum)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
