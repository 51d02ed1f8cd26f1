"""Shows decisions to people: one start-up line, and tables that are plain and aligned in a pipe. Decides nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

from inferplane.plan.types import Decision, Loser, Plan, Setting
from inferplane.plugins.records import Problem


class Table(NamedTuple):
    """What is printed: a title, column names and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def startup_line(plan: Plan) -> str:
    """The choices of a start in one line."""
    device = plan.device.name or plan.platform_name
    parts = [f"platform {plan.platform_name} ({_owner(plan)}: {device})", f"{plan.model.architecture} in {plan.dtype}"]
    if plan.kv_dtype != plan.dtype:
        parts.append(f"cache in {plan.kv_dtype}")
    parts += [_attention(plan), _providers("ops", [binding.provider.id for binding in plan.ops])]
    parts.append(
        _providers("linear", [f"{scheme} {component.id}" for scheme, component in plan.linear if scheme != "*"])
    )
    pages = "/".join(str(group.tokens_per_page) for group in plan.geometry.groups)
    parts.append(f"pages of {pages} tokens" if pages else "no cache")
    if plan.pooler is not None:
        parts.append(f"pooling {plan.pooler.pooling_type}")
    return "; ".join(part for part in parts if part)


def warning_text(problem: Problem) -> str:
    """A problem and what to do about it, as an error of the command line has it."""
    return f"{problem.message}; remedy: {problem.remedy}" if problem.remedy else problem.message


def decision_tables(decisions: Iterable[Decision]) -> list[Table]:
    """What was chosen, and every candidate that was not, with its reasons."""
    chosen, rejected = [], []
    for decision in merge_alike(decisions):
        score = "" if decision.score is None else str(decision.score)
        chosen.append((decision.subject, decision.chosen, score, decision.source, decision.reason))
        rejected += [_loser_row(decision, loser) for loser in decision.losers]
    tables = [Table("Chosen", ("subject", "chosen", "score", "source", "reason"), chosen)]
    if rejected:
        tables.append(Table("Not chosen", ("subject", "candidate", "score", "reasons"), rejected))
    return tables


def settings_table(settings: Iterable[Setting]) -> Table:
    """Every setting, its value in effect and where that comes from."""
    rows = [(setting.path, setting.value, setting.source) for setting in settings]
    return Table("Settings", ("setting", "value", "from"), rows)


def merge_alike(decisions: Iterable[Decision]) -> list[Decision]:
    """Decisions that differ only in which op they are about, as one: "op rms_norm@1, rope@1"."""
    merged: dict[tuple[object, ...], list[Decision]] = {}
    for decision in decisions:
        kind = decision.subject.partition(" ")[0]
        alike = (kind, decision.chosen, decision.reason, decision.losers) if kind == "op" else (decision.subject,)
        merged.setdefault(alike, []).append(decision)
    return [_merge(group) for group in merged.values()]


def print_tables(tables: Iterable[Table], stream: TextIO | None = None) -> None:
    """Rich tables on a terminal; in a pipe, columns padded with spaces and nothing cut off."""
    out = stream if stream is not None else sys.stdout
    if out.isatty():
        _print_rich(tables, out)
        return
    out.write("\n\n".join(plain_table(table) for table in tables) + "\n")


def plain_table(table: Table) -> str:
    """The table as aligned text, without trailing spaces."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([table.title, *text])


_WORDS = {
    "PRESENT": "green",
    "ABSENT": "dim",
    "BROKEN": "bold red",
    "INCOMPATIBLE": "yellow",
    "usable": "green",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
    "user": "cyan",
    "flag": "cyan",
    "file": "cyan",
    "keyword": "cyan",
    "plugin": "magenta",
    "device": "blue",
    "checkpoint": "blue",
    "default": "dim",
    "automatic": "dim",
    "incompatible": "yellow",
    "unknown": "yellow",
}
"""The first word of a state, a level or a source to its colour on a terminal."""

_COLOURED = ("state", "level", "source", "from", "note")
_BOLD = ("chosen", "name", "platform")


def _style(column: str, cell: str) -> str:
    if column in _COLOURED:
        return _WORDS.get(cell.partition(" ")[0].rstrip(":"), "")
    return "bold" if column in _BOLD else ""


def _print_rich(tables: Iterable[Table], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=out)
    for table in tables:
        shown = RichTable(title=table.title, title_justify="left")
        for column in table.columns:
            shown.add_column(column, overflow="fold")
        for row in table.rows:
            shown.add_row(
                *(Text(cell, style=_style(column, cell)) for column, cell in zip(table.columns, row, strict=True))
            )
        console.print(shown)


def _loser_row(decision: Decision, loser: Loser) -> tuple[str, str, str, str]:
    score = "" if loser.score is None else str(loser.score)
    return decision.subject, loser.id, score, "; ".join(map(str, loser.reasons))


def _merge(group: Sequence[Decision]) -> Decision:
    first = group[0]
    if len(group) == 1:
        return first
    subjects = [decision.subject.partition(" ")[2] for decision in group]
    return Decision(
        subject=f"op {subjects[0]} and {len(group) - 1} more",
        chosen=first.chosen,
        score=first.score,
        source=first.source,
        reason=f"{first.reason}: {', '.join(subjects)}",
        losers=first.losers,
    )


def _owner(plan: Plan) -> str:
    return f"{plan.platform.distribution} {plan.platform.version}"


def _attention(plan: Plan) -> str:
    if plan.runner_seam:
        return "its own runner"
    shown = [
        f"{group.kind} x{len(group.layers)} {component.id}"
        for group, component in zip(plan.geometry.groups, plan.attention, strict=True)
    ]
    num_within = sum(layer.kind == "encoder" for layer in plan.model.layers)
    shown += [f"encoder x{num_within} torch"] if num_within else []
    return f"attention {', '.join(shown)}"


def _providers(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = [f"{name} x{count}" if count > 1 else name for name, count in Counter(names).items()]
    return f"{what} {', '.join(shown)}"
