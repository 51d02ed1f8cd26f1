"""The argument parser of every command; knows no setting, so that a command without settings starts fast."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from inferplane.config.actions import JsonObject, Pair

_CHOICE = re.compile(r"invalid choice: '(?P<given>.*?)' \(choose from (?P<known>.*)\)")
"""As argparse words it."""


class Foreign(NamedTuple):
    """What a flag of another engine means here."""

    ours: str | None
    """The flag with the same meaning; None: there is none."""
    advice: str
    """What to do instead."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that takes no abbreviations and suggests the nearest flag for an unknown one.

    Underscores in a flag are dashes. `--flag.key VALUE` sets one key of a flag that takes an object. A parser with
    many flags groups its help: `--help=GROUP`, `--help=WORD`, `--help=all`.
    """

    foreign: Callable[[str], Foreign | None] | None = None
    """Looks a flag of another engine up."""
    grouped = False
    """The plain help names the groups only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but a command reports what it does not know: the whole program has no flags to suggest."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:
            words = self._spelled(words)
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        if (choice := _CHOICE.search(message)) is not None:
            near = difflib.get_close_matches(choice["given"], re.findall(r"[\w.-]+", choice["known"]), n=1)
            message += f" (did you mean {near[0]}?)" if near else ""
        known = list(self._option_string_actions)
        for word in message.split():
            if word.startswith("--") and word.rstrip(":") not in known:
                near = difflib.get_close_matches(word.split("=")[0], known, n=1)
                if near:
                    message += f" (did you mean {near[0]}?)"
                break
        super().error(message)

    def format_help(self) -> str:
        """The groups and their sizes where there are many flags, as argparse otherwise."""
        return self._overview() if self.grouped else super().format_help()

    def format_usage(self) -> str:
        """One line where argparse would list every flag."""
        return f"usage: {self._short_usage()}\n" if self.grouped else super().format_usage()

    def help_for(self, word: str) -> str:
        """The help of one group, of all, or of the flags that a word occurs in."""
        if word.lower() == "all":
            return super().format_help()
        asked = word.lower().replace("_", "-").lstrip("-")
        groups = [group for group in self._action_groups if (group.title or "").lower() == asked]
        if groups:
            return self._help_of([(group, group._group_actions) for group in groups])
        exact = [action for action in self._actions if f"--{asked}" in action.option_strings]
        found = exact or [action for action in self._actions if _mentions(action, asked)]
        if not found:
            self.error(f"no group and no flag has {word!r} in it; groups are {', '.join(self._titles())}, all")
        members = [(group, [a for a in group._group_actions if a in found]) for group in self._action_groups]
        return self._help_of([(group, actions) for group, actions in members if actions])

    def _spelled(self, words: list[str]) -> list[str]:
        """The words as the flags are declared; ends the program for --help=WORD and flags that are another engine's."""
        spelled: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == "--":
                return [*spelled, word, *rest]
            if word.startswith("--help="):
                sys.stdout.write(self.help_for(word.partition("=")[2]))
                self.exit(0)
            if word.startswith("-") and not _is_number(word):
                spelled += self._spell_flag(word, rest)
            else:
                spelled.append(word)
        return spelled

    def _spell_flag(self, word: str, rest: Any) -> list[str]:
        flag, sign, value = word.partition("=")
        if flag.startswith("--"):
            flag = self._dashed(flag)
        known = self._option_string_actions
        if flag not in known and self.foreign is not None:
            flag = self._translated(flag)
        if flag not in known and "." in flag:
            base, *path = flag.split(".")
            action = known.get(base)
            if isinstance(action, (Pair, JsonObject)) and all(path):
                given = value if sign else next(rest, None)
                if given is None:
                    self.error(f"argument {flag}: expected one argument")
                return [base, action.spell(path, given)]
        return [f"{flag}{sign}{value}"]

    def _dashed(self, flag: str) -> str:
        base, dot, path = flag.partition(".")
        dashed = base.replace("_", "-")
        return flag if flag in self._option_string_actions else dashed + dot + path

    def _translated(self, flag: str) -> str:
        found = self.foreign(flag) if self.foreign is not None else None
        if found is None:
            return flag
        if found.ours is None or found.ours not in self._option_string_actions:
            if found.ours is None:
                super().error(f"{flag} is a flag of vLLM's; {found.advice}")
            return flag
        print(f"note: {flag} of vLLM is {found.ours} here", file=sys.stderr)
        return found.ours

    def _titles(self) -> list[str]:
        return [group.title or "" for group in self._action_groups if group._group_actions]

    def _overview(self) -> str:
        formatter = self._get_formatter()
        formatter.add_text(f"usage: {self._short_usage()}")
        formatter.add_text(self.description)
        for group in self._action_groups:
            if group._group_actions and group.description is None:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        lines = [
            f"  --help={group.title:<16} {len(group._group_actions):>3} flags: {group.description}"
            for group in self._action_groups
            if group._group_actions and group.description is not None
        ]
        lines += ["  --help=all                 everything", "  --help=WORD                flags with the word in them"]
        return formatter.format_help() + "\nsettings:\n" + "\n".join(lines) + "\n"

    def _short_usage(self) -> str:
        words = [f"[{action.metavar or action.dest}]" for action in self._actions if not action.option_strings]
        return " ".join([self.prog, "[settings]", *words])

    def _help_of(self, groups: Sequence[tuple[Any, Sequence[argparse.Action]]]) -> str:
        formatter = self._get_formatter()
        for group, actions in groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()


def _mentions(action: argparse.Action, word: str) -> bool:
    return any(word in option for option in action.option_strings) or word in (action.help or "").lower()


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
