"""The 1:N hooks, called one plugin at a time so that a failing hook marks one plugin; never on the token path.

Entry-point group `inferplane.plugins`: each value is a module or object with functions marked `hookimpl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pluggy

if TYPE_CHECKING:
    from inferplane_api.spec import HostInfo

PROJECT = "inferplane"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


LEVELS = ("ok", "warning", "error")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a doctor's report or of a validation."""

    level: str
    """One of LEVELS."""
    subject: str
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for another level: a finding that nobody looks at is lost."""
        if self.level not in LEVELS:
            raise ValueError(f"level={self.level!r}: a finding's level is one of {', '.join(LEVELS)}")


@hookspec
def inferplane_validate(config: dict[str, Any]) -> list[Finding]:  # type: ignore[empty-body]
    """Look at the user's configuration before anything starts; an error finding refuses the start."""


@hookspec
def inferplane_doctor(host: HostInfo) -> list[Finding]:  # type: ignore[empty-body]
    """Checks of the plugin's own for `inferplane doctor`."""


@hookspec
def inferplane_worker_start(role: str, rank: int) -> None:
    """An engine process has opened its platform and not loaded the model yet."""


@hookspec
def inferplane_worker_stop(role: str, rank: int) -> None:
    """An engine process is about to end in good order."""


@hookspec
def inferplane_selection(record: dict[str, Any]) -> None:
    """The plan was made; `record` is its JSON form."""
