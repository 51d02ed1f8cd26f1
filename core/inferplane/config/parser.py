"""The argument parser of every command; knows no setting, so that a command without settings starts fast."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argparse parser that takes no abbreviations and suggests the nearest flag for an unknown one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but a command reports what it does not know: the whole program has no flags to suggest."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        known = list(self._option_string_actions)
        for word in message.split():
            if word.startswith("--") and word.rstrip(":") not in known:
                near = difflib.get_close_matches(word.split("=")[0], known, n=1)
                if near:
                    message += f" (did you mean {near[0]}?)"
                break
        super().error(message)
