"""The public surface of inferplane-api as one flat list of names, checked in as platform_api/api_surface.json.

    python tools/api_surface.py            # compare; exit status 1 and the differences when the surface changed
    python tools/api_surface.py --update   # write the file; refused unless version and changelog fit the change

The source is read, not imported, so that the list is the same on every Python; ops and entry-point groups are data and
come from the modules. An addition cannot break a plugin that was written before it; anything else counts as breaking.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from inferplane_api import API_VERSION
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import GROUPS

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "platform_api" / "inferplane_api"
FILE = REPOSITORY / "platform_api" / "api_surface.json"
CHANGELOG = REPOSITORY / "CHANGELOG.md"

Level = Literal["none", "addition", "breaking"]
LEVELS: tuple[Level, ...] = ("none", "addition", "breaking")
Surface = dict[str, str]
_RECORDS = {"Struct", "NamedTuple"}


class Change(NamedTuple):
    """One name that is not what it was."""

    level: Level
    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.level}: {self.name} is new: {self.new}"
        if self.new is None:
            return f"{self.level}: {self.name} is gone: {self.old}"
        return f"{self.level}: {self.name} was {self.old}, is {self.new}"


class Recorded(NamedTuple):
    """The checked-in file."""

    api_version: str
    base: str | None
    """The last version that was published before this one; None before the first."""
    level: Level
    """What changed since the base."""
    surface: Surface


# ---------------------------------------------------------------------------------------------------------- the surface


def read_surface() -> Surface:
    """Name to its description, sorted. The kit's own modules are not part, its commands are in docs/conformance.md; nor
    is what core and the kit share (`internal`)."""
    surface: Surface = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in ("testing", "internal"):
            module = ".".join(part for part in ("inferplane_api", *parts) if part != "__init__")
            surface |= describe_module(module, path.read_text(encoding="utf-8"))
    for schema in SCHEMAS.values():
        tolerances = ", ".join(f"{dtype} {pair}" for dtype, pair in sorted(schema.tolerances.items()))
        requires = ", ".join(sorted(schema.requires)) or "nothing"
        surface[f"op {schema.id}"] = f"{schema.signature}; tolerances {tolerances}; requires {requires}"
    for group, record in GROUPS.items():
        surface[f"group {group}"] = record.__name__
    return dict(sorted(surface.items()))


def describe_module(module: str, source: str) -> Surface:
    """The public names of one module."""
    surface: Surface = {}
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name) if _public(name):
                surface |= _describe_class(f"{module}.{name}", node)
            case ast.FunctionDef(name=name) if _public(name):
                hook = any(isinstance(each, ast.Name) and each.id == "hookspec" for each in node.decorator_list)
                surface[f"{module}.{name}"] = ("hook " if hook else "") + _signature(node)
            case ast.AnnAssign(target=ast.Name(id=name)) if _public(name):
                surface[f"{module}.{name}"] = f"constant {ast.unparse(node.annotation)}"
            case ast.Assign(targets=[ast.Name(id=name)]) if _public(name):
                # The members of a type alias are its meaning; other constants may change their value.
                alias = isinstance(node.value, ast.Subscript | ast.BinOp)
                surface[f"{module}.{name}"] = ast.unparse(node.value) if alias else "constant"
            case ast.ImportFrom() if module == "inferplane_api":
                surface |= {f"{module}.{alias.name}": f"from {node.module}" for alias in node.names}
            case _:
                pass
    return surface


def _describe_class(path: str, node: ast.ClassDef) -> Surface:
    options = [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords]
    bases = [ast.unparse(base) for base in node.bases]
    surface = {path: f"class ({', '.join([*bases, *options])})"}
    places = itertools.count()
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name)) if _public(name):
                default = f" = {ast.unparse(item.value)}" if item.value is not None else ""
                # Plugins may build a tuple by position.
                place = f"{next(places)} " if "NamedTuple" in bases else ""
                surface[f"{path}.{name}"] = f"field {place}{ast.unparse(item.annotation)}{default}"
            case ast.Assign(targets=[ast.Name(id=name)]) if _public(name):
                surface[f"{path}.{name}"] = f"value {ast.unparse(item.value)}"
            case ast.FunctionDef(name=name) if _public(name) or name == "__init__":
                kinds = {each.id for each in item.decorator_list if isinstance(each, ast.Name)}
                word = "property" if "property" in kinds else "method"
                surface[f"{path}.{name}"] = f"{word} {_signature(item)}"
            case _:
                pass
    return surface


def _public(name: str) -> bool:
    return not name.startswith("_")


def _signature(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"({ast.unparse(node.args)}){returns}"


# ----------------------------------------------------------------------------------------------------------- comparison


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    """What changed, breaking changes first."""
    changes = [Change("breaking", name, text, None) for name, text in old.items() if name not in new]
    for name, text in new.items():
        if name not in old:
            changes.append(Change(_level_of_new(name, text, old), name, None, text))
        elif text != old[name]:
            changes.append(Change("addition" if _widened(old[name], text) else "breaking", name, old[name], text))
    return sorted(changes, key=lambda change: (-LEVELS.index(change.level), change.name))


def _level_of_new(name: str, text: str, old: Mapping[str, str]) -> Level:
    """A record that plugins make must not need more, and a protocol that they implement must not ask for more."""
    owner = old.get(name.rpartition(".")[0], "")
    if not owner.startswith("class"):
        return "addition"
    if text.startswith("field") and any(base in owner for base in _RECORDS):
        return "addition" if " = " in text else "breaking"
    return "breaking" if "Protocol" in owner else "addition"


def _widened(old: str, new: str) -> bool:
    """True for a Literal with more members, and for a function that core offers with more defaulted arguments."""
    if "Literal[" in old and _without_literals(old) == _without_literals(new):
        before, after = _literals(old), _literals(new)
        return len(before) == len(after) and all(a <= b for a, b in zip(before, after, strict=True))
    if old.startswith("(") and new.startswith("("):
        return _takes_all(_parse(old), _parse(new))
    return False


def _without_literals(text: str) -> str:
    return re.sub(r"Literal\[[^]]*\]", "Literal", text)


def _literals(text: str) -> list[set[str]]:
    return [set(members.split(", ")) for members in re.findall(r"Literal\[([^]]*)\]", text)]


def _parse(signature: str) -> ast.FunctionDef:
    node = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def _takes_all(old: ast.FunctionDef, new: ast.FunctionDef) -> bool:
    """True when every call of the old function is one of the new function with the same meaning."""
    before, after = _arguments(old), _arguments(new)
    names = [name for kind, name, _, _ in before if kind == "positional"]
    same_places = [name for kind, name, _, _ in after if kind == "positional"][: len(names)] == names
    same = all(argument in after for argument in before)
    added = [argument for argument in after if argument not in before]
    optional = all(default is not None for _, _, _, default in added)
    returns = ast.dump(old.returns or ast.Constant(None)) == ast.dump(new.returns or ast.Constant(None))
    return same_places and same and optional and returns


def _arguments(node: ast.FunctionDef) -> list[tuple[str, str, str, str | None]]:
    """(kind, name, annotation, default) of each argument."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [("positional", arg, value) for arg, value in zip(positional, [*missing, *arguments.defaults], strict=True)]
    pairs += [("keyword", arg, value) for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [
        (kind, arg.arg, ast.unparse(arg.annotation) if arg.annotation else "", ast.unparse(value) if value else None)
        for kind, arg, value in pairs
    ]


# ------------------------------------------------------------------------------------------------------------- versions


def worst(changes: list[Change], level: Level = "none") -> Level:
    """The highest level among changes and one more."""
    return max([level, *(change.level for change in changes)], key=LEVELS.index)


def least_version(base: str | None, level: Level) -> str:
    """The lowest version that may carry a change since a published one. Before 1.0 the minor is the major."""
    if base is None or level == "none":
        return base or "0.0.0"
    major, minor, patch = _release(base)
    if major == 0:
        return f"0.{minor + 1}.0" if level == "breaking" else f"0.{minor}.{patch + 1}"
    return f"{major + 1}.0.0" if level == "breaking" else f"{major}.{minor + 1}.0"


def _release(version: str) -> tuple[int, int, int]:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major, minor, patch


def published(version: str, changelog: str) -> bool:
    """True when a version of the contract is no longer named under *API* of what is unreleased."""
    return not _named(version, _sections(changelog, "Unreleased"))


def next_record(recorded: Recorded | None, surface: Surface, version: str, changelog: str) -> Recorded:
    """What the file should hold. Raises ValueError, saying what to do, when version or changelog do not fit."""
    if recorded is None:
        return Recorded(version, None, "none", surface)
    changes = compare(recorded.surface, surface)
    base, level = recorded.base, recorded.level
    if published(recorded.api_version, changelog) and (changes or version != recorded.api_version):
        base, level = recorded.api_version, "none"
    level = worst(changes, level)
    least = least_version(base, level)
    if _release(version) < _release(least):
        lines = "".join(f"\n  {change}" for change in changes)
        raise ValueError(
            f"the contract's surface changed since {base}:{lines}\n"
            f"a change of level {level!r} needs API_VERSION {least} or higher (it is {version}) in "
            "inferplane_api/__init__.py and platform_api/pyproject.toml"
        )
    if not _named(version, _sections(changelog)):
        raise ValueError(f"CHANGELOG.md does not name version {version} of the contract under ### API")
    return Recorded(version, base, level if base is not None else "none", surface)


def _sections(changelog: str, release: str = "") -> Iterator[str]:
    """The texts below "### API", of one release or of all."""
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        if section.startswith(release):
            yield from re.findall(r"^### API\n(.*?)(?=^### |\Z)", section, re.MULTILINE | re.DOTALL)


def _named(version: str, sections: Iterator[str]) -> bool:
    return any(re.search(rf"(?<![\d.]){re.escape(version)}(?!\.?\d)", text) for text in sections)


# ------------------------------------------------------------------------------------------------------------- the file


def read_file(path: Path = FILE) -> Recorded | None:
    """The checked-in record; None when there is none."""
    if not path.exists():
        return None
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Recorded(**data)


def as_text(recorded: Recorded) -> str:
    """The file's content."""
    return json.dumps(recorded._asdict(), indent=1) + "\n"


def problem(recorded: Recorded | None, surface: Surface, version: str, changelog: str) -> str:
    """Why the checked-in file is not what the code is, and what to do; "" when it is."""
    if recorded is not None and (recorded.surface, recorded.api_version) == (surface, version):
        return ""
    changes = [] if recorded is None else compare(recorded.surface, surface)
    lines = "".join(f"\n  {change}" for change in changes)
    try:
        next_record(recorded, surface, version, changelog)
    except ValueError as error:
        return str(error)
    return (
        f"the contract's surface changed:{lines}\n"
        f"say so in CHANGELOG.md under ### API (version {version}), then run: python tools/api_surface.py --update"
    )


def main() -> int:
    """Compare or write."""
    changelog = CHANGELOG.read_text(encoding="utf-8")
    recorded, surface = read_file(), read_surface()
    if "--update" in sys.argv[1:]:
        try:
            FILE.write_text(as_text(next_record(recorded, surface, API_VERSION, changelog)), encoding="utf-8")
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    text = problem(recorded, surface, API_VERSION, changelog)
    if text:
        print(text, file=sys.stderr)
    return 1 if text else 0


if __name__ == "__main__":
    raise SystemExit(main())
