"""The user's configuration seen through a plugin's patches. Neither is edited; every patch is a recorded decision."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from pydantic import BaseModel, ValidationError

from inferplane.config import Config
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.types import Decision
from inferplane_api.spec import PATCHABLE, ConfigPatch


class SourcedPatch(NamedTuple):
    """A patch and who asks for it, "acme-npu 1.2"."""

    patch: ConfigPatch
    owner: str


class Settings:
    """Values by dotted path: the user's, or a patch's where the user is silent or a default is all that was said."""

    def __init__(self, config: Config, patches: Iterable[SourcedPatch] = ()) -> None:
        """Raises InferplaneError when two patches require one path, or one contradicts the user or makes no sense."""
        self._config = config
        self._patched: dict[str, SourcedPatch] = {}
        self._values: dict[str, Any] = {}
        for sourced in patches:
            self._add(sourced)

    def value(self, path: str) -> Any:
        """What holds for "section.field"."""
        if path in self._patched:
            return self._values[path]
        return self._own(path)

    def source(self, path: str) -> str:
        """ "user", "plugin NAME" or "automatic"."""
        if path in self._patched:
            return f"plugin {self._patched[path].owner}"
        return "user" if self.said(path) else "automatic"

    def origin(self, path: str) -> str:
        """Where the value was said: "flag --NAME", "file FILE", "keyword NAME", "plugin NAME VERSION" or "default"."""
        if path in self._patched:
            return f"plugin {self._patched[path].owner}"
        return self._config.origin(_field(path)) if self.said(path) else "default"

    def said(self, path: str) -> bool:
        """True when the user gave a value."""
        section, field = self._split(path)
        return field in section.model_fields_set and getattr(section, field) is not None

    def insisted(self, path: str) -> bool:
        """True when the user said it or a plugin requires it: what cannot hold is an error then, and never adjusted."""
        patched = self._patched.get(path)
        return self.said(path) if patched is None else patched.patch.strength == "require"

    def reason(self, path: str) -> str:
        """Why a patch holds, "require: its pages"; "" where none does."""
        if path not in self._patched:
            return ""
        patch = self._patched[path].patch
        return f"{patch.strength}: {patch.reason}"

    @contextmanager
    def attributed(self) -> Iterator[None]:
        """Inside, an InvalidValue for a value that a patch brought becomes an error that names the plugin."""
        try:
            yield
        except InvalidValue as error:
            sourced = next((each for path, each in self._patched.items() if _field(path) == error.field), None)
            if sourced is None:
                raise
            patch, flag = sourced.patch, "--" + error.field.replace("_", "-")
            insist = f"a value of your own with {flag}, or " if patch.strength == "default" else ""
            raise InferplaneError(
                f"{sourced.owner} patches {patch.path} with {patch.value!r} ({patch.reason}): {error.problem}",
                code="config.patch",
                remedy=f"{insist}another platform than that of {sourced.owner}",
            ) from error

    def decisions(self) -> list[Decision]:
        """A record for every patch that holds."""
        return [
            Decision(
                subject=f"config {path}",
                chosen=str(sourced.patch.value),
                source=f"plugin {sourced.owner}",
                reason=self.reason(path),
            )
            for path, sourced in self._patched.items()
        ]

    def _own(self, path: str) -> Any:
        section, field = self._split(path)
        return getattr(section, field)

    def _split(self, path: str) -> tuple[BaseModel, str]:
        section, _, field = path.partition(".")
        return getattr(self._config, section), field

    def _add(self, sourced: SourcedPatch) -> None:
        patch = sourced.patch
        value = self._validated(sourced)
        earlier = self._patched.get(patch.path)
        if earlier is not None and earlier.patch.strength == patch.strength == "require":
            raise InferplaneError(
                f"{earlier.owner} requires {patch.path}={earlier.patch.value!r} ({earlier.patch.reason}) and "
                f"{sourced.owner} requires {patch.path}={patch.value!r} ({patch.reason})",
                code="config.conflict",
                remedy="disable one of the two with --disable-plugins",
            )
        if self.said(patch.path):
            self._hold_against_user(sourced, value)
        elif earlier is None or patch.strength == "require":
            self._patched[patch.path] = sourced
            self._values[patch.path] = value

    def _hold_against_user(self, sourced: SourcedPatch, value: Any) -> None:
        """A default gives way to what the user said; a requirement that differs from it is an error."""
        patch = sourced.patch
        own = self._own(patch.path)
        if patch.strength == "require" and own != value:
            raise InvalidValue(
                patch.path,
                own,
                f"{sourced.owner} requires {patch.value!r}: {patch.reason}",
                remedy=f"leave it out, or choose another platform than that of {sourced.owner}",
            )

    def _validated(self, sourced: SourcedPatch) -> Any:
        """The patch's value as the configuration's own field would hold it."""
        patch = sourced.patch
        if patch.path not in PATCHABLE:
            _refuse_path(sourced)
        section, field = self._split(patch.path)
        try:
            return getattr(type(section)(**{field: patch.value}), field)
        except ValidationError as error:
            raise InferplaneError(
                f"{sourced.owner} patches {patch.path} with {patch.value!r}: {error.errors()[0]['msg']}",
                code="config.patch",
                remedy=f"pip install --upgrade {sourced.owner.split()[0]}",
            ) from error


def _refuse_path(sourced: SourcedPatch) -> NoReturn:
    near = difflib.get_close_matches(sourced.patch.path, PATCHABLE, n=1)
    meant = f"did its author mean {near[0]!r}? " if near else ""
    raise InferplaneError(
        f"{sourced.owner} patches {sourced.patch.path!r}, which no plugin may; it may patch {', '.join(PATCHABLE)}",
        code="config.patch",
        remedy=f"{meant}pip install --upgrade {sourced.owner.split()[0]}",
    )


def _field(path: str) -> str:
    return path.partition(".")[2]
